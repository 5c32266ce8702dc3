"""The CRC32 of an object over TLS, as Amazon takes it: after the bytes, in a trailer.

No server: each request is caught where the SDK would send it.
"""

import base64
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from urllib3 import HTTPResponse

from statekeep.backends.storage.client import ObjectStamps
from statekeep.backends.storage.s3 import S3Client
from statekeep.config.blob_settings import S3Settings

DATA = bytes(range(256)) * 1000
CRC32 = base64.b64encode(zlib.crc32(DATA).to_bytes(4, "big")).decode()


class SentRequest:
    """Answers the SDK in the place of a server, and keeps what the server would have got."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""

    def __call__(self, request: Any, **_: object) -> AWSResponse:
        self.headers = {
            name: value.decode() if isinstance(value, bytes) else value
            for name, value in request.headers.items()
        }
        self.body = request.body if isinstance(request.body, bytes) else request.body.read()
        return AWSResponse(
            request.url, 200, {"ETag": '"tag"'}, HTTPResponse(io.BytesIO(), preload_content=False)
        )

    def chunks_and_trailer(self) -> tuple[bytes, str]:
        """Take the body apart: chunks with their sizes, a last one of 0, then the trailer."""
        data, rest = b"", self.body
        while True:
            size, _, rest = rest.partition(b"\r\n")
            if not int(size, 16):
                return data, rest.decode().strip()
            data += rest[: int(size, 16)]
            rest = rest[int(size, 16) :].removeprefix(b"\r\n")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[S3Client, SentRequest]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    client = S3Client("bucket", "p/", S3Settings(endpoint="https://s3.example.com"), 1)
    request = SentRequest()
    client._s3.meta.events.register("before-send.s3", request)
    yield client, request
    client.close()


def put_object(client: S3Client) -> None:
    client.put("a", DATA, ObjectStamps({}), if_absent=True)


def upload_part(client: S3Client) -> None:
    client.put_part("a", "upload", 0, DATA)


@pytest.mark.parametrize("send", [put_object, upload_part])
def test_the_checksum_of_the_bytes_follows_them_in_a_trailer(
    sent: tuple[S3Client, SentRequest], send: Callable[[S3Client], None]
) -> None:
    client, request = sent
    send(client)
    assert request.headers["X-Amz-Trailer"] == "x-amz-checksum-crc32"
    assert request.headers["Content-Encoding"] == "aws-chunked"
    assert request.headers["X-Amz-Content-SHA256"] == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    assert request.headers["X-Amz-Decoded-Content-Length"] == str(len(DATA))
    assert request.chunks_and_trailer() == (DATA, f"x-amz-checksum-crc32:{CRC32}")
