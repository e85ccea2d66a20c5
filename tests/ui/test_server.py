"""One file for one page, once: whoever else knocks is refused, and what breaks off may be tried again."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputrace.errors import InputError, OutputError
from gputrace.ui.server import UI, TraceServer

DATA = bytes(range(256)) * 40_000  # more than sockets hold


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "my trace.pftrace").write_bytes(DATA)
    return tmp_path / "my trace.pftrace"


@pytest.fixture
def server(trace: Path) -> Iterator[TraceServer]:
    with TraceServer(str(trace), port=0) as server:
        yield server


def ask(
    server: TraceServer, path: str | None = None, method: str = "GET", **headers: str | None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """As the UI does, unless told otherwise; a header that is None is left out."""
    sent = {"Host": server.host, "Origin": UI} | headers
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest(method, (path or server.path).replace(" ", "%20"), skip_host=True)
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_the_ui_gets_it_once(server: TraceServer) -> None:
    status, headers, body = ask(server)
    assert (status, body) == (200, DATA)
    assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
    assert server.wait(timeout_s=20)
    assert ask(server)[0] == 410


def test_it_listens_on_loopback_alone(server: TraceServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:9001"}, 421),
        ({"Host": "localhost:9001"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": None}, 421),
        ({"Origin": None}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://ui.perfetto.dev"}, 403),
        ({"Origin": "https://ui.perfetto.dev.evil.example"}, 403),
        ({"Origin": "https://ui.perfetto.dev:444"}, 403),
    ],
)
def test_strangers_get_nothing(server: TraceServer, headers: dict[str, str | None], status: int) -> None:
    for method in ("GET", "OPTIONS"):
        found, answer, body = ask(server, method=method, **headers)
        assert (found, body) == (status, b"")
        assert "Access-Control-Allow-Origin" not in answer
    assert not server.wait(timeout_s=0)


def test_only_its_path_is_there(server: TraceServer) -> None:
    other = "x" * len(server.token)
    for path in ("/", "/my trace.pftrace", f"/{other}/my trace.pftrace", f"/{server.token}/", f"{server.path}/../x"):
        assert ask(server, path)[0] == 404
    for method in ("POST", "PUT", "HEAD", "DELETE"):
        assert ask(server, method=method)[0] == 501
    assert not server.wait(timeout_s=0)


def test_each_path_is_another(trace: Path) -> None:
    with TraceServer(str(trace), port=0) as one, TraceServer(str(trace), port=0) as two:
        assert one.token != two.token
        assert len(one.token) >= 22  # 128 bits


def test_what_a_browser_asks_first(server: TraceServer) -> None:
    status, headers, _ = ask(server, method="OPTIONS")
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
    assert headers["Access-Control-Allow-Methods"] == "GET"
    assert headers["Access-Control-Allow-Private-Network"] == "true"


def test_a_fetch_that_breaks_off_may_be_tried_again(server: TraceServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        path = server.path.replace(" ", "%20")
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {server.host}\r\nOrigin: {UI}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.0 200")
        assert ask(server)[0] == 410  # one at a time
    assert not server.wait(timeout_s=20)
    assert ask(server)[2] == DATA
    assert server.wait(timeout_s=20)


def test_what_cannot_be_served(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, told in [("gone", "No such file"), (".", "is a folder: give a trace in it"), ("empty", "is empty")]:
        with pytest.raises(InputError, match=told):
            TraceServer(str(tmp_path / name), port=0)


def test_a_port_that_is_taken(trace: Path, server: TraceServer) -> None:
    with pytest.raises(OutputError, match=f"port {server.port} of 127.0.0.1 cannot be listened on: .*in use"):
        TraceServer(str(trace), server.port)


def test_its_own_copy_of_the_ui_and_nothing_beside_it(trace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ui"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html>")
    (folder / "service_worker.js").write_text("stay")
    (folder / "link").symlink_to(trace)
    with TraceServer(str(trace), port=0, ui=folder) as server:
        status, headers, body = ask(server, "/", Origin=None)
        assert (status, headers["Content-Type"], body) == (200, "text/html", b"<!doctype html>")
        for path in ("/../my trace.pftrace", "/%2e%2e/my trace.pftrace", "//etc/passwd", "/link", "/service_worker.js"):
            assert ask(server, path, Origin=None)[0] == 404, path
        assert ask(server, "/", Origin=UI)[0] == 404
        assert ask(server, Origin=UI)[0] == 403
        assert ask(server, Origin=None)[2] == DATA
