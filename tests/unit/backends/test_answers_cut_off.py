"""An object store that breaks off an answer: asked again, and what has come is not kept in memory."""

import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typing_extensions import override

from statekeep.backends.storage.s3 import S3Client
from statekeep.config.blob_settings import S3Settings
from statekeep.errors import RetriableError

pytestmark = pytest.mark.timeout(20)
PART_BYTES = 8 << 20


class BreakingOff(BaseHTTPRequestHandler):
    """Sends what was asked for of one object, and a byte too few of any other."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(206)
        self.send_header("Content-Length", str(PART_BYTES))
        self.send_header("Content-Range", f"bytes 0-{PART_BYTES - 1}/{PART_BYTES}")
        self.end_headers()
        is_whole = self.path == "/bucket/whole"
        self.wfile.write(bytes(PART_BYTES - (not is_whole)))
        self.close_connection = not is_whole

    @override
    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    with ThreadingHTTPServer(("127.0.0.1", 0), BreakingOff) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        settings = S3Settings(endpoint=endpoint, region="us-east-1", has_path_style=True)
        client = S3Client("bucket", "", settings, 1)
        yield client
        client.close()
        server.shutdown()


def test_an_answer_that_is_cut_off_is_asked_for_again_and_its_bytes_are_let_go(
    client: S3Client,
) -> None:
    assert len(client.read("whole", 0, PART_BYTES).data) == PART_BYTES  # loads what a request needs
    tracemalloc.start()
    try:
        with pytest.raises(RetriableError) as caught:
            client.read("cut", 0, PART_BYTES)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most >= PART_BYTES
    assert held < PART_BYTES / 4
    assert caught.value.__cause__ is not None  # the error and its frames live until here
