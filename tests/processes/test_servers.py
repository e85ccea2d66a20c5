"""Servers that fork their workers before the first request: gunicorn itself."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.processes.test_starts import load
from tests.record.running import PYTHON, left_behind, recording, start
from tests.ways.program import SUFFIXES

pytestmark = pytest.mark.slow

WORKERS = 3
APPLICATION = """
import os, gputrace
with gputrace.span("import", pid=os.getpid()):
    pass

def application(environ, start_response):
    with gputrace.span("request", path=environ["PATH_INFO"], pid=os.getpid()):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [str(os.getpid()).encode()]
"""


def get(address: Path, path: str) -> int:
    """Ask the server for a path; which worker answered."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(address))
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 200
        return int(response.read())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("options", [[], ["--preload"]], ids=["each imports", "preload"])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_every_request_of_every_worker(tmp_path: Path, options: list[str], end: signal.Signals, suffix: str) -> None:
    (tmp_path / "server.py").write_text(APPLICATION)
    command = [PYTHON, "-m", "gunicorn", "-w", str(WORKERS), "-b", "unix:socket", *options, "server:application"]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    with start(recording(*command, output=f"t{suffix}"), tmp_path, env=environment) as recorder:
        deadline = time.monotonic() + 30
        while True:
            try:
                answered = [get(tmp_path / "socket", "/first")]
                break
            except OSError:
                assert time.monotonic() < deadline
                assert recorder.poll() is None
                time.sleep(0.05)
        answered += [get(tmp_path / "socket", f"/{n}") for n in range(100)]
        recorder.send_signal(end)
        assert recorder.wait(30) == 0
    found = load(tmp_path / f"t{suffix}")
    requests = [each for each in found if each.name == "request"]
    assert Counter(each.args["path"] for each in requests) == Counter(["/first", *(f"/{n}" for n in range(100))])
    assert Counter(each.args["pid"] for each in requests) == Counter(answered)
    assert all(each.track[0].endswith(f" {each.args['pid']}") for each in found)
    assert len([each for each in found if each.name == "import"]) == (1 if options else WORKERS)
    assert [name for name in left_behind(tmp_path) if name.startswith(".t.")] == []
