"""Every command that reads traces takes URLs: patterns, folders, and files, which it tells of without secrets."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from gputrace.cli.main import main
from tests.cli.test_record import said
from tests.cli.test_summary import made
from tests.merging.making import Drawn
from tests.record.running import GPUTRACE, run
from tests.storage import serving


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Any]:
    made(tmp_path)
    storage = fsspec.filesystem("memory")
    for path in tmp_path.iterdir():
        storage.pipe(f"/run/{path.name}", path.read_bytes())
    yield storage
    storage.rm("/", recursive=True)


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def gputrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Any:
    """Runs a command in this process, which alone sees what it keeps in memory."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["gputrace", *arguments])
        before = signal.getsignal(signal.SIGINT)
        code = main()
        signal.signal(signal.SIGINT, before)
        out, err = capsysbinary.readouterr()
        return Ran(code, out.decode(), err.decode())

    return command


def test_summary_and_diff_are_as_of_files_here(memory: Any, gputrace: Any) -> None:
    here = json.loads(gputrace("summary", "rank0.pftrace", "rank1.pftrace", "--json").out)
    there = json.loads(gputrace("summary", "memory://run/rank*", "--json").out)
    assert [row.pop("path") for row in there["traces"]] == [f"memory://run/rank{k}.pftrace" for k in (0, 1)]
    assert [row.pop("path") for row in here["traces"]] == ["rank0.pftrace", "rank1.pftrace"]
    assert there == here
    sides = ("rank0.pftrace", "trace.pftrace", "--", "rank1.pftrace")
    here = gputrace("diff", *sides, "--json")
    there = gputrace("diff", *(side if side == "--" else f"memory://run/{side}" for side in sides), "--json")
    assert (there.code, there.out) == (here.code, here.out)
    assert json.loads(there.out)


def test_what_is_not_there_is_told_and_the_rest_summed_up(memory: Any, gputrace: Any) -> None:
    memory.pipe("/run/words.json", b"once upon a time")
    ran = gputrace("summary", "memory://run/none.json", "memory://none/*", "memory://run/words.json", "memory://run/r*")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "gputrace: memory://run/none.json: cannot be looked for: there is no such file",
        "gputrace: memory://none/* matches no file, or is a folder that holds no trace",
        "gputrace: memory://run/words.json: is not a trace: neither Perfetto's packets nor Chrome's JSON begin it",
    ]
    assert "memory://run/rank1.pftrace" in ran.out


def test_check_takes_patterns_and_folders(memory: Any, gputrace: Any) -> None:
    ran = gputrace("check", "memory://run/rank*")
    assert ran.code == 0
    assert [line.partition(": nothing is wrong with it: ")[0] for line in ran.out.splitlines()] == [
        "memory://run/rank0.pftrace",
        "memory://run/rank1.pftrace",
    ]
    found = json.loads(gputrace("check", "memory://run", "--json").out)
    assert [each["trace"] for each in found] == [f"memory://run/{n}.pftrace" for n in ("rank0", "rank1", "trace")]
    ran = gputrace("check", "memory://run/none*")
    assert (ran.code, ran.err) == (1, "gputrace: memory://run/none*: matches no file\n")


def test_convert_query_and_plot(memory: Any, gputrace: Any, tmp_path: Path) -> None:
    for suffix in ("json", "pftrace"):
        assert gputrace("convert", "trace.pftrace", f"here.{suffix}").code == 0
        ran = gputrace("convert", "memory://run/trace.pftrace", f"there.{suffix}")
        assert ran.code == 0, ran.err
        assert Drawn(tmp_path / f"there.{suffix}").rows() == Drawn(tmp_path / f"here.{suffix}").rows()
    sql = "select name, ts, dur from slice order by ts, dur"
    options = ("--trace-processor", "wasm", "--json")
    here = gputrace("query", "trace.pftrace", sql, *options).out
    there = gputrace("query", "memory://run/tr*.pftrace", sql, *options)
    assert (there.code, there.out) == (0, here)
    assert json.loads(here)
    for url, name in (("trace.pftrace", "here.svg"), ("memory://run/trace.pftrace", "there.svg")):
        assert gputrace("plot", url, "-o", name, "--slice", "step#2").code == 0
    assert (tmp_path / "there.svg").read_bytes() == (tmp_path / "here.svg").read_bytes()


def test_merge(memory: Any, gputrace: Any, tmp_path: Path) -> None:
    ran = gputrace("merge", "memory://run/rank*.pftrace", "-o", "all.pftrace", "--strict")
    assert ran.code == 0, ran.err
    assert "2 traces" in ran.err
    assert gputrace("check", "all.pftrace").code == 0


def test_over_a_network_and_with_secrets(tmp_path: Path) -> None:
    made(tmp_path)
    with serving() as server:
        server.files["/a.pftrace"] = (tmp_path / "trace.pftrace").read_bytes()
        url = f"http://me:hunter2@{server.url.removeprefix('http://')}/%s?token=abcdef"
        done = run([*GPUTRACE, "summary", url % "a.pftrace", url % "b.pftrace"], tmp_path)
        assert done.returncode == 1
        assert said(done.stderr) == [
            f"{url % 'b.pftrace'}: cannot be fetched: there is no such file".replace("hunter2", "***").replace(
                "abcdef", "***"
            )
        ]
        assert b"forward" in done.stdout
        assert b"hunter2" not in done.stdout + done.stderr
        assert b"abcdef" not in done.stdout + done.stderr


def test_pictures_and_pages_are_brought_to_a_url(memory: Any, gputrace: Any, tmp_path: Path) -> None:
    for name, arguments in (
        ("t.svg", ("plot", "memory://run/rank0.pftrace", "-o")),
        ("t.html", ("summary", "memory://run/rank0.pftrace", "--html")),
    ):
        there, here = gputrace(*arguments, f"memory://out/{name}"), gputrace(*arguments, name)
        assert (there.code, here.code) == (0, 0)
        assert f"memory://out/{name}" in there.err
        assert memory.cat(f"/out/{name}") == (tmp_path / name).read_bytes()


def test_a_picture_or_page_that_cannot_be_brought_is_kept(memory: Any, gputrace: Any, monkeypatch: Any) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(type(memory), "put_file", full)
    for name, arguments in (
        ("t.svg", ("plot", "rank0.pftrace", "-o")),
        ("t.html", ("summary", "rank0.pftrace", "--html")),
    ):
        ran = gputrace(*arguments, f"memory://out/{name}")
        assert ran.code == 1
        kept = Path(ran.err.partition("kept: ")[2].partition(";")[0])
        assert kept.name == name
        assert kept.stat().st_size


@pytest.mark.parametrize("arguments", [("plot", "rank0.pftrace", "-o"), ("summary", "rank0.pftrace", "--html")])
def test_a_web_server_takes_no_pictures_and_no_pages(memory: Any, gputrace: Any, arguments: Any) -> None:
    ran = gputrace(*arguments, "https://user:secret@host/t.html")
    assert ran.code == 2
    assert "a web server takes no files" in ran.err
    assert "secret" not in ran.err


def test_open_says_to_fetch_a_url_first(gputrace: Any) -> None:
    ran = gputrace("open", "s3://bucket/t.pftrace", "--no-browser")
    assert ran.code == 2
    assert "s3://bucket/t.pftrace: open takes a file of this machine: fetch it" in ran.err
