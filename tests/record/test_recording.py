"""A recording's start refuses what cannot work; its end adds up what the processes counted."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from gputrace import hostclock
from gputrace.errors import OutputError, UsageError
from gputrace.model import SLICE, ClockSnapshot, Process, Track
from gputrace.record.recording import (
    Session,
    discard_recording,
    finish_recording,
    recover,
    start_recording,
)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return start_recording(str(tmp_path / "trace.json"), "host", ["program", "argument"])


def write_shard(session: Session) -> int:
    """A shard as a process would leave it: one track with one slice."""
    folder = session.folder
    number = folder.claim()
    process = Process(number, 4321, "program", ["program"], hostclock.now_ns(), folder.claim)
    with open(folder.shard_path(number), "r+b", buffering=0) as file:
        exporter = session.exporter(file, folder.recording, process)
        track = Track(1, "thread", "main", tid=4321)
        exporter.open_track(track)
        begun_ns = hostclock.now_ns()
        exporter.write(track, [(begun_ns, SLICE, "slice", None, 0, begun_ns + 1000)])
        exporter.close()
    return number


def test_the_folder_is_hidden_private_and_beside_the_output(session: Session, tmp_path: Path) -> None:
    assert os.path.dirname(session.folder.path) == str(tmp_path)
    assert os.path.basename(session.folder.path).startswith(".trace.json.")
    assert stat.S_IMODE(os.stat(session.folder.path).st_mode) == 0o700
    assert len(session.folder.snapshots()) == 1
    discard_recording(session)
    assert os.listdir(tmp_path) == []


def test_what_the_trace_says_about_its_recording(session: Session) -> None:
    facts = session.folder.metadata()
    assert facts["command_line"] == ["program", "argument"]
    assert facts["hostname"] == os.uname().nodename
    assert facts["device"] == "host"
    assert isinstance(facts["start_realtime_ns"], int)
    assert os.environ["PATH"] not in map(str, facts.values())


def test_the_git_commit_is_that_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gputrace.record.gitcommit import commit

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert commit(str(tmp_path)) == ""
    git("init", "-q")
    assert commit(str(below)) == ""  # nothing committed yet
    git("commit", "-q", "--allow-empty", "-m", "one")
    head = git("rev-parse", "HEAD").strip()
    assert commit(str(below)) == head
    git("pack-refs", "--all")
    assert commit(str(below)) == head
    git("worktree", "add", "-q", "-b", "other", "tree")
    assert commit(str(tmp_path / "tree")) == head
    git("checkout", "-q", "--detach")
    assert commit(str(below)) == head
    (tmp_path / ".git" / "HEAD").write_bytes(b"\xff")
    assert commit(str(below)) == ""


def test_a_summary_adds_up(session: Session, tmp_path: Path) -> None:
    for uncertainty_ns in (300, 100):
        number = write_shard(session)
        report: dict[str, int | str | list[str]] = {"pid": 1, "slices": 10, "windows": 4, "dropped": 1, "ended": 1}
        session.folder.write_report(number, report | {"worst_uncertainty_ns": uncertainty_ns, "told": ["same"]})
    session.folder.write_report(write_shard(session), {"slices": 5})  # killed before it counted the rest
    session.folder.claim()  # this process's too: it took another number and did not need it

    summary = finish_recording(session)

    assert (summary.slices, summary.windows, summary.dropped) == (25, 8, 2)
    assert summary.worst_uncertainty_ns == 300
    assert (summary.processes, summary.cut_short, summary.silent) == (3, 1, 0)
    assert summary.is_lower_bound
    assert summary.told == ["same"]
    assert summary.path == str(tmp_path / "trace.json")
    assert summary.size == os.path.getsize(summary.path)
    assert os.listdir(tmp_path) == ["trace.json"]


def test_a_suspend_is_told(session: Session) -> None:
    now = hostclock.snapshot()
    later_ns = now.monotonic_ns + 10**12
    session.folder.add_snapshot(ClockSnapshot(now.boottime_ns + 10**12 + 5 * 10**9, later_ns, now.realtime_ns))
    write_shard(session)
    (told,) = finish_recording(session).told
    assert "suspended for 5.0 s" in told


def test_shards_survive_a_join_that_fails_and_can_be_recovered(session: Session, tmp_path: Path) -> None:
    session.folder.write_report(write_shard(session), {"slices": 1, "ended": 1})
    (tmp_path / "trace.json").mkdir()  # someone made a folder there meanwhile
    with pytest.raises(OutputError, match="Nothing recorded is lost") as failure:
        finish_recording(session)
    assert f"gputrace merge {session.folder.path}" in str(failure.value)

    with pytest.raises(UsageError, match=r"in the format \.json"):
        recover(session.folder.path, str(tmp_path / "other.pftrace"))
    summary = recover(session.folder.path, str(tmp_path / "other.json.gz"))
    assert summary.slices == 1
    assert sorted(os.listdir(tmp_path)) == ["other.json.gz", "trace.json"]


@pytest.mark.parametrize("report", [{}, {"slices": 1}, {"ended": 1, "dropped": 1}, {"ended": 1, "told": ["disk full"]}])
def test_a_loss_is_not_denied_when_the_trace_cannot_be_written(
    session: Session, tmp_path: Path, report: dict[str, int | str | list[str]]
) -> None:
    number = write_shard(session)
    if report:
        session.folder.write_report(number, report)
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(OutputError, match="What was recorded up to then is in") as failure:
        finish_recording(session)
    assert "Nothing recorded is lost" not in str(failure.value)
    assert ("disk full" in str(failure.value)) == ("told" in report)


def test_a_folder_that_is_gone_is_not_promised(session: Session, tmp_path: Path) -> None:
    shutil.rmtree(session.folder.path)
    with pytest.raises(OutputError, match="is gone, and what was recorded with it") as failure:
        finish_recording(session)
    assert "gputrace merge" not in str(failure.value)
    assert "gputrace merge" not in session.how_to_recover()


def test_a_summary_shows_what_it_holds(session: Session) -> None:
    session.folder.write_report(write_shard(session), {"slices": 3, "ended": 1})
    shown = repr(finish_recording(session))
    assert shown.startswith("Summary(path='")
    assert "slices=3" in shown
    assert "dropped" not in shown


def test_what_is_no_recording_is_not_recovered(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in [(".", "no file 'recording' in it"), ("missing", "does not exist"), ("file", "it is a file")]:
        with pytest.raises(OutputError, match=why):
            recover(str(tmp_path / path), str(tmp_path / "x.json"))


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    for output, why in [
        ("missing/x.json", "does not exist; make it first"),
        ("file/x.json", "is a file, not a folder"),
        ("folder.json", "it is a folder"),
        ("fifo.json", "no ordinary file"),
        (f"{'x' * 300}.json", "File name too long"),
    ]:
        with pytest.raises(OutputError, match=why):
            start_recording(str(tmp_path / output), "host")
    assert sorted(os.listdir(tmp_path)) == ["fifo.json", "file", "folder.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_outputs_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "mine.json").touch(0o400)
    with pytest.raises(OutputError, match="you may not write it"):
        start_recording(str(tmp_path / "mine.json"), "host")
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="takes no new files"):
        start_recording(str(tmp_path / "new.json"), "host")
    tmp_path.chmod(0o700)


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    os.symlink("elsewhere/real.json", tmp_path / "link.json")
    session = start_recording(str(tmp_path / "link.json"), "host")
    write_shard(session)
    finish_recording(session)
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "elsewhere" / "real.json").stat().st_size


def test_an_unknown_device_lists_those_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"auto.*cuda.*simulated.*host"):
        start_recording(str(tmp_path / "x.json"), "tpu")
    assert os.listdir(tmp_path) == []
