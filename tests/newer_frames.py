"""Frames as a release to come would write them."""

import zlib


def of_next_format(framed: bytes) -> bytes:
    """Return a frame of version 1 as one of version 2, whose checksum covers the version too."""
    header, _, payload = framed.partition(b"\n")
    magic, version, kind, _, size = header.split(b" ")
    assert (magic, version) == (b"statekeep", b"1")
    crc = b"%08x" % zlib.crc32(b"2 " + kind + payload)
    return b" ".join([magic, b"2", kind, crc, size]) + b"\n" + payload
