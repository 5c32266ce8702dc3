"""A server that speaks as much of Google Cloud Storage as a put and a listing need, and misbehaves."""

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import md5
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from typing_extensions import override

Answer: TypeAlias = tuple[int, dict[str, str], bytes]
INCOMPLETE: Answer = (HTTPStatus.PERMANENT_REDIRECT, {}, b"")
"""To a chunk: the service has nothing of the upload."""


class GcsStub:
    """Stores what it is sent; the answers in ``scripted`` come first.

    Attributes:
        sizes: Of the bodies of uploads, those of chunks each by itself.
        requests: Method and path of every request.
        scripted: By method, what is answered in place of the truth, in order; ``last``: to the last
            chunk of an upload.
        damage: What becomes of content on its way.
        is_deaf: Whether bodies are not read.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self._upload = b""
        self.sizes: list[int] = []
        self.requests: list[str] = []
        self.scripted: dict[str, list[Answer]] = {}
        self.damage: Callable[[bytes], bytes] = bytes
        self.is_deaf = False
        self.is_over = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        self.requests.append(f"{method} {path.partition('?')[0]}")
        if scripted := self.scripted.get(method):
            return scripted.pop(0)
        if method == "POST":
            return self._uploaded(path, headers, body)
        is_listing = path.partition("?")[0].endswith("/o")
        return (HTTPStatus.OK if is_listing else HTTPStatus.NOT_FOUND), {}, b'{"items": []}'

    def _uploaded(self, path: str, headers: Any, body: bytes) -> Answer:
        if "uploadType=resumable" in path:
            self._upload = b""
            return HTTPStatus.OK, {"Location": f"{self.endpoint}/upload/session?id=1"}, b""
        self.sizes.append(len(body))
        if "uploadType=multipart" in path:
            return self._stored(body.split(b"\n\n", 2)[2].removesuffix(b"\n--==0==--"))
        self._upload += body
        span, _, total = headers["Content-Range"].removeprefix("bytes ").partition("/")
        end = int(span.partition("-")[2])
        if end + 1 < int(total):
            return HTTPStatus.PERMANENT_REDIRECT, {"Range": f"bytes=0-{end}"}, b""
        if scripted := self.scripted.get("last"):
            return scripted.pop(0)
        return self._stored(self._upload)

    def _stored(self, content: bytes) -> Answer:
        digest = md5(self.damage(content), usedforsecurity=False).digest()
        told = {"name": "a", "size": str(len(content)), "md5Hash": b64encode(digest).decode()}
        return HTTPStatus.OK, {}, json.dumps(told).encode()


@contextmanager
def gcs_stub() -> Generator[GcsStub]:
    """Run the server in a thread."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            if stub.is_deaf:
                stub.is_over.wait()
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, data = stub.answer(self.command, self.path, self.headers, body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815  # as the server looks for them

        @override
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        stub = GcsStub(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield stub
        stub.is_over.set()
        server.shutdown()
        thread.join()
