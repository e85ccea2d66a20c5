"""A server on this machine's loopback for one file, which Perfetto's UI fetches once.

Every process on the machine, and every page in a browser, can knock here. So the file has a random path; Host has to be
ours, or a page of another name that resolves to 127.0.0.1 could ask; and Origin has to be the UI's own.
"""

from __future__ import annotations

import hmac
import http.server
import os
import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from gputrace.errors import InputError, OutputError
from gputrace.reading.recognise import refuse_folder

#: The one port of this machine that the UI's content security policy lets it fetch from.
PORT = 9001
ADDRESS = "127.0.0.1"
UI = "https://ui.perfetto.dev"

# A client that stalls for longer is given up; the file may then be fetched anew.
_STALL_S = 60.0
# The UI loads parts of itself late: when it serves that too, the server stays until nothing was asked for so long.
_LINGER_S = 10.0
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json"}
_TYPES |= {".wasm": "application/wasm", ".png": "image/png", ".woff2": "font/woff2"}
# A service worker would outlive this server in the browser, and answer for whatever uses the port next.
_WITHHELD = "/service_worker.js"


class TraceServer:
    """Serves ``trace`` at `url` until it was fetched whole, once.

    With ``ui``, the folder of a copy of the UI, it serves that as well, and the page is its own. ``port`` 0 takes
    a free one. Raises `InputError` if the trace cannot be read, `OutputError` if the port is taken.
    """

    def __init__(self, trace: str, port: int = PORT, ui: Path | None = None) -> None:
        self.token = secrets.token_urlsafe(16)
        self.ui = ui
        self.fetched = False
        self._asked_s = time.monotonic()
        self._changed = threading.Condition()
        self._being_sent = False
        refuse_folder(trace)
        try:
            self._file = open(trace, "rb")  # noqa: SIM115 - closed with this
        except OSError as error:
            raise InputError(trace, 0, f"cannot be read: {error.strerror}") from error
        self.size = os.fstat(self._file.fileno()).st_size
        if not self.size:
            self._file.close()
            raise InputError(trace, 0, "is empty")
        self.path = f"/{self.token}/{os.path.basename(trace)}"
        try:
            self._server = _Server((ADDRESS, port), self)
        except OSError as error:
            self._file.close()
            raise OutputError(f"port {port} of {ADDRESS} cannot be listened on: {error.strerror}") from error
        self.port = self._server.server_address[1]
        self.host = f"{ADDRESS}:{self.port}"
        self.origin = f"http://{self.host}" if ui else UI
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        """What to open in a browser: the UI, told where its trace is."""
        trace = f"http://{self.host}{quote(self.path)}"
        return f"{self.origin}/#!/?url={quote(trace, safe='')}"

    def wait(self, timeout_s: float) -> bool:
        """Until the trace was fetched whole, at most ``timeout_s`` for it to begin. Was it?"""
        with self._changed:
            self._changed.wait_for(lambda: self.fetched or self._being_sent, timeout_s)
            while self._being_sent:  # a client that stalls is given up, so this ends
                self._changed.wait()
            fetched = self.fetched
        while fetched and self.ui and (left_s := self._asked_s + _LINGER_S - time.monotonic()) > 0:
            time.sleep(left_s)
        return fetched

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._file.close()

    def __enter__(self) -> TraceServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for the handlers, each on a thread of its own

    def touch(self) -> None:
        self._asked_s = time.monotonic()

    def claim(self) -> bool:
        """May this request send the trace? Not beside another, nor after one that sent it whole."""
        with self._changed:
            if self._being_sent or self.fetched:
                return False
            self._being_sent = True
            self._changed.notify_all()
            return True

    def send_to(self, out: Any) -> None:
        """The whole file. Whatever goes wrong, it may be asked for again."""
        whole = False
        try:
            self._file.seek(0)
            left = self.size
            while left and (piece := self._file.read(min(left, 1 << 20))):
                out.write(piece)
                left -= len(piece)
            out.flush()
            whole = not left
        finally:
            with self._changed:
                self._being_sent = False
                self.fetched = whole
                self._changed.notify_all()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], owner: TraceServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves midway is no news to the person at the terminal."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _STALL_S
    server_version = "gputrace"
    sys_version = ""

    def do_GET(self) -> None:
        owner = self.server.owner
        path = unquote(urlsplit(self.path).path)
        if not self._admitted():
            return
        if hmac.compare_digest(path.encode(), owner.path.encode()):
            self._send_trace()
        elif owner.ui and self._is_own_page():
            self._send_ui(owner.ui, path)
        else:
            self._refuse(404)

    def do_OPTIONS(self) -> None:
        """What a browser asks before a page of the public net may reach into this machine."""
        if not self._admitted():
            return
        if not self._of_ui():
            self._refuse(403)
            return
        self.send_response(204)
        self._allow_origin()
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def _admitted(self) -> bool:
        self.server.owner.touch()
        if self.headers.get_all("Host") == [self.server.owner.host]:
            return True
        self._refuse(421)
        return False

    def _of_ui(self) -> bool:
        return self.headers.get_all("Origin") == [self.server.owner.origin]

    def _is_own_page(self) -> bool:
        """Without an Origin, as a page's requests of its own server are."""
        return self.headers.get("Origin") is None or self._of_ui()

    def _send_trace(self) -> None:
        owner = self.server.owner
        if not (self._is_own_page() if owner.ui else self._of_ui()):
            self._refuse(403)
        elif not owner.claim():
            self._refuse(410)
        else:
            self.send_response(200)
            self._allow_origin()
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(owner.size))
            self._end_private_headers()
            owner.send_to(self.wfile)

    def _send_ui(self, folder: Path, path: str) -> None:
        wanted = (folder / path.lstrip("/")).resolve() if path != "/" else folder.resolve() / "index.html"
        if path == _WITHHELD or not wanted.is_relative_to(folder.resolve()) or not wanted.is_file():
            self._refuse(404)
            return
        with open(wanted, "rb") as file:
            self.send_response(200)
            self.send_header("Content-Type", _TYPES.get(wanted.suffix, "application/octet-stream"))
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self._end_private_headers()
            shutil.copyfileobj(file, self.wfile)

    def _end_private_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def _allow_origin(self) -> None:
        self.send_header("Access-Control-Allow-Origin", self.server.owner.origin)
        self.send_header("Vary", "Origin")

    def _refuse(self, code: int) -> None:
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """The path holds the token, so nothing is logged."""
