"""How the blocks of deltas are compressed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

from typing_extensions import override

from statekeep.errors import ConfigError

MAX_BLOCK_BYTES: Final = 1 << 30
"""Of a block, stored or raw: it holds one record that is as large, or many of 256 KiB together."""
_ANY_RATIO_BYTES: Final = 16 << 20
_MOST_RATIO: Final = 256
"""Raw bytes for a stored one; LZ4 cannot do better than 255."""


class BlockCodec(ABC):
    """Compresses and decompresses blocks; used by one thread at a time."""

    number: int
    """Stands in every block."""

    @abstractmethod
    def compress(self, raw: bytes) -> bytes:
        """Return the stored form of a block."""

    @abstractmethod
    def decompress(self, stored: bytes, raw_bytes: int) -> bytes:
        """Return a block of ``raw_bytes``, which are within `most_raw_bytes`: so much may be taken.

        Raises:
            ValueError: The stored form is damaged or of another size.
        """


def most_raw_bytes(stored_bytes: int) -> int:
    """Return how large a block may claim to be that is stored in so many bytes.

    A block is read whole, and Zstandard makes a gigabyte of 32 KiB: so what is compressed better
    than LZ4 ever does is taken up to a fixed size only. Writers keep to it (`compressed`).
    """
    return min(max(_ANY_RATIO_BYTES, _MOST_RATIO * stored_bytes), MAX_BLOCK_BYTES)


def compressed(codec: BlockCodec, raw: bytes) -> tuple[int, bytes]:
    """Return the number of the codec that a block is stored by, and its stored form.

    What a reader would refuse as too well compressed is stored as it is.
    """
    stored = codec.compress(raw)
    if len(raw) > most_raw_bytes(len(stored)):
        return NoCodec.number, raw
    return codec.number, stored


class NoCodec(BlockCodec):
    """Stores a block as it is."""

    number = 0

    @override
    def compress(self, raw: bytes) -> bytes:
        return raw

    @override
    def decompress(self, stored: bytes, raw_bytes: int) -> bytes:
        return _sized(stored, raw_bytes)


class Lz4Codec(BlockCodec):
    """The LZ4 block format, without a frame."""

    number = 1

    def __init__(self) -> None:
        """Load the library.

        Raises:
            ConfigError: It is not installed.
        """
        try:
            # Optional; and it ships no types.
            self._library: Any = import_module("lz4.block")
        except ImportError as exc:
            raise _missing("lz4") from exc

    @override
    def compress(self, raw: bytes) -> bytes:
        return bytes(self._library.compress(raw, store_size=False))

    @override
    def decompress(self, stored: bytes, raw_bytes: int) -> bytes:
        try:
            raw = bytes(self._library.decompress(stored, uncompressed_size=raw_bytes))
        except (self._library.LZ4BlockError, ValueError) as exc:
            raise ValueError("lz4 block is damaged") from exc
        return _sized(raw, raw_bytes)


class ZstdCodec(BlockCodec):
    """The Zstandard format: half as fast as lz4 or slower, and smaller."""

    number = 2

    def __init__(self) -> None:
        """Load the library.

        Raises:
            ConfigError: It is not installed.
        """
        try:
            import zstandard as library  # noqa: PLC0415  # optional, and only for who uses it
        except ImportError as exc:
            raise _missing("zstandard") from exc
        self._error = library.ZstdError
        self._frame_bytes = library.frame_content_size
        self._compressor = library.ZstdCompressor(level=1)
        self._decompressor = library.ZstdDecompressor()

    @override
    def compress(self, raw: bytes) -> bytes:
        return self._compressor.compress(raw)

    @override
    def decompress(self, stored: bytes, raw_bytes: int) -> bytes:
        try:
            # The library trusts a frame's own size, whatever limit it is given.
            if self._frame_bytes(stored) not in {raw_bytes, _UNSAID}:
                raise ValueError("zstd block is of another size")
            raw = self._decompressor.decompress(stored, max_output_size=raw_bytes)
        except self._error as exc:
            raise ValueError("zstd block is damaged") from exc
        return _sized(raw, raw_bytes)


_UNSAID: Final = -1
"""What the library calls the size of a frame that does not state it."""

_CODECS: Final[Mapping[str, Callable[[], BlockCodec]]] = MappingProxyType(
    {"none": NoCodec, "lz4": Lz4Codec, "zstd": ZstdCodec}
)
_NUMBERED: Final[Mapping[int, Callable[[], BlockCodec]]] = MappingProxyType(
    {codec.number: codec for codec in (NoCodec, Lz4Codec, ZstdCodec)}
)


def codec_named(name: str) -> BlockCodec:
    """Return the codec called ``none``, ``lz4`` or ``zstd``.

    Raises:
        ConfigError: Its library is not installed.
    """
    return _CODECS[name]()


def codec_numbered(number: int) -> BlockCodec | None:
    """Return the codec that a block names; None for one that is not known.

    Raises:
        ConfigError: Its library is not installed.
    """
    codec = _NUMBERED.get(number)
    return None if codec is None else codec()


def _missing(module: str) -> ConfigError:
    return ConfigError(
        f"blocks are compressed by a library that is not installed: module={module}",
        hint="pip install 'statekeep[hdfs]'",
    )


def _sized(raw: bytes, raw_bytes: int) -> bytes:
    if len(raw) != raw_bytes:
        msg = f"block is of another size: expected_bytes={raw_bytes} actual_bytes={len(raw)}"
        raise ValueError(msg)
    return raw
