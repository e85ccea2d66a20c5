"""A web server that holds files, says wrong things when it is told to, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """``files`` are by path ("/a.pftrace"). The next ``failures`` downloads end with status 503, the next ``torn`` ones
    after half of the file.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.failures = 0
        self.torn = 0
        self.asked: list[tuple[str, str]] = []
        self.url = ""


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            server.asked.append((self.command, self.path))
            data = server.files.get(self.path.partition("?")[0])
            if data is None or (with_body and server.failures):
                server.failures -= data is not None
                self.send_response(404 if data is None else 503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if not with_body:
                return
            if server.torn:
                server.torn -= 1
                data = data[: len(data) // 2]
                self.close_connection = True
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
