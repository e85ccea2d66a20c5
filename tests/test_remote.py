"""Traces that a URL names: found, fetched to where nobody else can read, told of without secrets, and left nowhere."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import gputrace
from gputrace import remote
from gputrace.errors import InputError, UsageError
from gputrace.merging import inputs
from gputrace.merging.merge import merge
from tests.merging.making import Drawn, Host, program, write_trace
from tests.record.running import PYTHON
from tests.storage import Server, serving


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "a.pftrace", Host("node0"), program(0, 10))


@pytest.fixture
def memory(trace: Path) -> Iterator[Any]:
    """A storage that holds the trace as /run/a.pftrace and another as /run/deep/b.json.gz."""
    storage = fsspec.filesystem("memory")
    storage.pipe("/run/a.pftrace", trace.read_bytes())
    other = write_trace(trace.with_name("b.json.gz"), Host("node0"), program(1, 11), number=1)
    storage.pipe("/run/deep/b.json.gz", other.read_bytes())
    storage.pipe("/run/notes.txt", b"not a trace")
    storage.pipe("/run/.hidden/x.pftrace", b"not ours")
    yield storage
    storage.rm("/", recursive=True)


@pytest.fixture
def server(trace: Path) -> Iterator[Server]:
    with serving() as made:
        made.files["/a.pftrace"] = trace.read_bytes()
        yield made


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_WAITS_S", (0.0, 0.0, 0.0))


def test_a_trace_elsewhere_is_as_one_here(trace: Path, memory: Any, temporary: Path) -> None:
    here, there = gputrace.read(trace), gputrace.read("memory://run/a.pftrace")
    assert there.path == "memory://run/a.pftrace"
    assert type(there.path) is str  # what it was fetched to is gone
    assert there.slices.ts_ns.tolist() == here.slices.ts_ns.tolist()
    assert list(there.slices.names) == list(here.slices.names)
    assert list(temporary.iterdir()) == []


def test_nobody_else_can_read_what_was_fetched(memory: Any, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    plain = MemoryFileSystem.get_file

    def get_file(self: Any, path: str, local: str, **options: Any) -> None:
        plain(self, path, local, **options)
        seen.append((stat.S_IMODE(os.stat(os.path.dirname(local)).st_mode), stat.S_IMODE(os.stat(local).st_mode)))

    monkeypatch.setattr(MemoryFileSystem, "get_file", get_file)
    with remote.here("memory://run/a.pftrace") as name:
        assert list(temporary.iterdir()) == []  # it has lost its name: a kill leaves nothing
        assert Path(remote.to_open(name)).read_bytes() == memory.cat("/run/a.pftrace")
        assert Path(remote.to_open(name)).read_bytes() == memory.cat("/run/a.pftrace")  # from its first byte again
    assert seen == [(0o700, 0o600)]


def test_what_a_url_names_on_this_machine_is_read_where_it_lies(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("fetched")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    assert len(gputrace.read(f"file://{trace}").slices) == len(gputrace.read(trace).slices)


def test_patterns_and_folders(memory: Any) -> None:
    found = remote.find("memory://run/*.pftrace")
    assert found == ["memory://run/a.pftrace"]
    assert remote.find("memory://run/**/b.json.gz") == ["memory://run/deep/b.json.gz"]
    inside = remote.find("memory://run", (".pftrace", ".json"))
    assert inside == ["memory://run/a.pftrace", "memory://run/deep/b.json.gz"]
    assert remote.find("memory://run/", (".json",)) == ["memory://run/deep/b.json.gz"]
    assert remote.find("memory://run/none*") == []


def test_one_is_wanted_where_several_are_named(memory: Any) -> None:
    memory.pipe("/run/c.pftrace", memory.cat("/run/a.pftrace"))
    with pytest.raises(InputError, match=r"memory://run/\*\.pftrace: matches 2 files: give one of them"):
        gputrace.read("memory://run/*.pftrace")
    with pytest.raises(InputError, match="matches no file"):
        gputrace.read("memory://run/*.json")
    with pytest.raises(InputError, match=r"memory://run/none\.json: .*there is no such file"):
        gputrace.read("memory://run/none.json")


def test_a_query_is_no_pattern(server: Server) -> None:
    url = f"{server.url}/a.pftrace?part=[1]&x=*"
    assert remote.find(url) == [url]
    assert len(gputrace.read(url).slices) > 0


@pytest.mark.parametrize("how", ["failures", "torn"])
def test_what_fails_for_a_moment_is_tried_again(server: Server, trace: Path, how: str) -> None:
    setattr(server, how, 3)
    assert len(gputrace.read(f"{server.url}/a.pftrace").slices) == len(gputrace.read(trace).slices)
    assert [method for method, _ in server.asked].count("GET") == 4


@pytest.mark.parametrize("how", ["failures", "torn"])
def test_what_fails_for_good_is_told(server: Server, temporary: Path, how: str) -> None:
    setattr(server, how, 100)
    with pytest.raises(InputError, match=r"a\.pftrace: cannot be fetched: .*Try again, or fetch it by"):
        gputrace.read(f"{server.url}/a.pftrace")
    assert list(temporary.iterdir()) == []


def test_what_is_not_there_is_not_asked_for_again(server: Server) -> None:
    with pytest.raises(InputError, match=r"/none\.json: cannot be fetched: there is no such file$"):
        gputrace.read(f"{server.url}/none.json")
    assert len(server.asked) <= 2


def test_a_trace_that_does_not_fit_is_not_begun(
    server: Server, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(server.files["/a.pftrace"])
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("", (), {"free": size - 1}))
    with pytest.raises(InputError, match=rf"does not fit into {temporary}: it takes {size:,} bytes, .*TMPDIR names"):
        gputrace.read(f"{server.url}/a.pftrace")
    assert "GET" not in [method for method, _ in server.asked]


def test_a_disk_that_fills_up_meanwhile_is_told(memory: Any, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_file(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MemoryFileSystem, "get_file", get_file)
    with pytest.raises(InputError, match="does not fit into"):
        gputrace.read("memory://run/a.pftrace")


def test_secrets_are_in_no_message(server: Server) -> None:
    server.files["/words.json"] = b"once upon a time"
    address = server.url.removeprefix("http://")
    for name in ("words.json", "none.json"):
        with pytest.raises(InputError) as raised:
            gputrace.read(f"http://me:hunter2@{address}/{name}?X-Amz-Signature=abcdef0123&sig=fedcba")
        text = str(raised.value)
        assert text.startswith(f"http://me:***@{address}/{name}?X-Amz-Signature=***&sig=***: ")
        assert not any(secret in text for secret in ("hunter2", "abcdef", "fedcba"))


def test_what_is_said_of_a_url_is_of_the_file_that_is_told_without_its_secrets(server: Server) -> None:
    url = f"http://me:hunter2@{server.url.removeprefix('http://')}/a.pftrace"
    found = inputs.find((url,))
    [file] = found.files
    assert file == url.replace("hunter2", "***")
    assert inputs.by_input("--clock", {url: 7}, (url,), found) == {file: 7}
    with pytest.raises(UsageError) as raised:
        inputs.by_input("--clock", {f"{url}.gz": 7}, (url,), found)
    assert str(raised.value) == f"--clock names {file}.gz, which is none of the inputs; did you mean {file}?"


def test_a_storage_that_nobody_knows(trace: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere://x/a\.pftrace: .*nowhere"):
        gputrace.read("nowhere://x/a.pftrace")


def test_a_storage_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"class": "no_such_package.Storage", "err": "Install no_such_package to access it"}
    monkeypatch.setitem(sys.modules["fsspec.registry"].known_implementations, "missing", entry)  # type: ignore[index]
    with pytest.raises(UsageError, match=r"Install no_such_package to access it: pip install 'gputrace\[remote\]'"):
        gputrace.read("missing://x/a.pftrace")


def child(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_without_fsspec_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['fsspec'] = None; from gputrace.cli.main import main; sys.exit(main())"
    for command in (["summary", "s3://b/*.pftrace"], ["plot", "s3://b/a.pftrace", "-o", "x.svg"]):
        done = child(program, *command)
        url = next(part for part in command if "://" in part)
        assert done.returncode == 2
        assert done.stderr == f"gputrace: {url}: a URL needs fsspec: pip install 'gputrace[remote]'\n"


def test_a_file_here_takes_no_fsspec(trace: Path, tmp_path: Path) -> None:
    a = str(trace)
    commands = [
        ["summary", a],
        ["diff", a, a],
        ["check", a],
        ["convert", a, str(tmp_path / "a.json")],
        ["query", "--trace-processor", "wasm", a, "select 1"],
        ["plot", a, "-o", str(tmp_path / "a.svg")],
        ["merge", a, "-o", str(tmp_path / "all.pftrace")],
    ]
    program = (
        "import sys\nfrom gputrace.cli.main import main\n"
        f"for command in {commands!r}:\n    sys.argv[1:] = command\n    assert main() == 0, command\n"
        "assert 'fsspec' not in sys.modules"
    )
    done = child(program)
    assert done.returncode == 0, done.stderr


def test_a_merge_of_traces_elsewhere(memory: Any, tmp_path: Path) -> None:
    merge((str(tmp_path / "a.pftrace"), str(tmp_path / "b.json.gz")), str(tmp_path / "here.pftrace"))
    outcome = merge(("memory://run", "memory://run/a.pftrace", "memory://none/*"), str(tmp_path / "there.pftrace"))
    assert outcome.merged == ["memory://run/a.pftrace", "memory://run/deep/b.json.gz"]
    assert outcome.problems == [
        "memory://none/* matches no file, or is a folder that holds no trace",
        "memory://run/a.pftrace: is given 2 times, and read once",
    ]
    assert Drawn(tmp_path / "there.pftrace").rows() == Drawn(tmp_path / "here.pftrace").rows()
