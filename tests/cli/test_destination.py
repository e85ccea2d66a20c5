"""What goes to a URL: whole, after retries, or kept here and told; and a recorded program's exit code is its own."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace.cli.destination import Destination
from gputrace.errors import UsageError
from gputrace.ranks import hostname
from tests.cli.test_record import said
from tests.flaky_storage import installed
from tests.merging.making import Drawn, Host, program, write_trace
from tests.record.running import GPUTRACE, ONE_SPAN, PYTHON, WRITTEN, recording, run, start, wait_for

ENDS_WITH_7 = f"{ONE_SPAN}\nraise SystemExit(7)"


class Place:
    """A folder to work in, a storage that is flaky:// there, and a folder for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.environment = installed(folder)
        self.stored, self.temporary, self.cwd = folder / "stored", folder / "temporary", folder / "cwd"
        self.cwd.mkdir()

    def run(self, command: list[Any], **environment: str) -> subprocess.CompletedProcess[bytes]:
        return run(command, self.cwd, env={**self.environment, **environment})

    def record(self, output: str, program: str = ENDS_WITH_7, **environment: str) -> subprocess.CompletedProcess[bytes]:
        return self.run(recording(PYTHON, "-c", program, output=output), **environment)

    def kept(self, lines: list[str]) -> Path:
        """The file that was told to be kept; it is the only one left."""
        [path] = {Path(match[1]) for line in lines if (match := re.search(r"is kept: (\S+?)(;|$)", line))}
        assert [each for each in self.temporary.rglob("*") if each.is_file()] == [path]
        return path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_recording_is_brought_there_whole_and_leaves_nothing_here(place: Place) -> None:
    done = place.record("flaky://run/trace.pftrace.gz")
    assert (done.returncode, done.stdout) == (7, b"done\n")
    [line] = said(done.stderr)
    assert line.startswith("wrote flaky://run/trace.pftrace.gz: ")
    assert line.endswith("1 slice, 0 GPU windows, 0 dropped")  # the UI cannot open it from there
    assert [each.name for each in Drawn(place.stored / "run" / "trace.pftrace.gz").slices] == ["work"]
    assert list(place.temporary.iterdir()) == list(place.cwd.iterdir()) == []


@pytest.mark.parametrize("how", [".failures", ".torn"])
def test_what_fails_for_a_moment_is_tried_again(place: Place, how: str) -> None:
    (place.stored / how).write_text("1")
    done = place.record("flaky://trace.pftrace")
    assert (done.returncode, len(said(done.stderr))) == (7, 1)
    assert len(Drawn(place.stored / "trace.pftrace").slices) == 1
    assert list(place.temporary.iterdir()) == []


def test_what_fails_for_good_is_kept_here(place: Place) -> None:
    (place.stored / ".failures").write_text("100")
    done = place.record("flaky://trace.pftrace")
    assert (done.returncode, done.stdout) == (7, b"done\n")
    failed, wrote = said(done.stderr)
    assert failed.startswith("cannot write flaky://trace.pftrace: the network is down, said token=***. The whole file")
    kept = place.kept([failed])
    assert wrote.startswith("wrote ")
    assert kept.name in wrote
    assert len(Drawn(kept).slices) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_is_brought_keeps_it_here(place: Place, number: signal.Signals) -> None:
    (place.stored / ".hang").touch()
    command = recording(PYTHON, "-c", ENDS_WITH_7, output="flaky://trace.pftrace")
    running = start(command, place.cwd, env=place.environment, stderr=subprocess.PIPE)
    wait_for(place.stored / ".hanging")
    running.send_signal(number)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 7
    lines = said(err)
    assert lines[0].startswith("interrupted before it was in flaky://trace.pftrace; the whole file is kept: ")
    assert len(Drawn(place.kept(lines)).slices) == 1


def test_a_command_that_a_signal_ends(place: Place) -> None:
    done = place.record("flaky://trace.pftrace", f"{ONE_SPAN}{WRITTEN}os.kill(os.getpid(), 15)")
    assert done.returncode == -signal.SIGTERM
    assert len(Drawn(place.stored / "trace.pftrace").slices) == 1


def test_a_rank_names_it_there_too(place: Place) -> None:
    done = place.record("flaky://%h/r%r.pftrace", RANK="3", WORLD_SIZE="4")
    assert done.returncode == 7
    assert len(Drawn(place.stored / hostname() / "r3.pftrace").slices) == 1
    done = place.record("flaky://me:hunter2@b/trace.pftrace", RANK="3", WORLD_SIZE="4")
    renamed, _ = said(done.stderr)
    assert renamed.startswith(
        "rank 3 writes flaky://me:***@b/trace.rank3.pftrace, as every rank was given the output flaky://"
    )
    assert b"hunter2" not in done.stderr
    assert list(place.temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://me:hunter2@example.org/t.pftrace", "a web server takes no files. Write to a path here"),
        ("HTTP://example.org/t.pftrace", "a web server takes no files. Write to a path here"),
        ("simplecache::https://example.org/t.pftrace", "a web server takes no files. Write to a path here"),
        ("github://org:repo@main/t.pftrace", "github:// takes no files. Write to a path here"),
        ("flaky://run/", "it is a folder; name a file in it, flaky://run/trace.pftrace"),
        ("nowhere://t.pftrace", "fsspec knows no storage nowhere://"),
        ("flaky://me:hunter2@run/t.txt", "the suffix '.txt' names no trace format"),
        ("absent://t.pftrace", ": pip install 'gputrace[remote]'"),
    ],
)
def test_what_could_never_be_written_is_told_before_the_command_runs(place: Place, url: str, told: str) -> None:
    points = place.cwd.parent / "site" / "flaky-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "absent = no_such_package:Storage\n")
    done = place.record(url, "print('ran')")
    assert (done.returncode, done.stdout) == (2, b"")
    [line] = said(done.stderr)
    assert told in line
    assert line.startswith("cannot write ")
    assert b"hunter2" not in done.stderr
    assert list(place.temporary.iterdir()) == []


def test_a_web_server_is_told_of_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would not help."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="a web server takes no files"):
        Destination("https://example.org/t.pftrace")


def test_a_command_that_does_not_start_leaves_nothing(place: Place) -> None:
    done = place.run(recording("./none", output="flaky://trace.pftrace"))
    assert done.returncode == 127
    assert list(place.temporary.iterdir()) == []
    assert list(place.stored.iterdir()) == []


def test_a_file_of_this_machine_is_written_in_place(place: Place) -> None:
    done = place.record(f"file://{place.cwd}/here.pftrace", TMPDIR="/nowhere")
    assert done.returncode == 7
    assert len(Drawn(place.cwd / "here.pftrace").slices) == 1


def test_dumps_go_there_too(place: Place) -> None:
    program = (
        "import gputrace, os, time\nwith gputrace.span('work'): pass\npath = gputrace.dump()\n"
        "while not os.path.exists(path): time.sleep(0.01)"
    )
    command = recording(PYTHON, "-c", program, output="flaky://run/trace.pftrace")
    command[command.index("--") : command.index("--")] = ["--last", "30s"]
    done = place.run(command)
    assert done.returncode == 0, done.stderr
    assert said(done.stderr)[-1] == "wrote flaky://run/trace.1.pftrace"
    for name in ("trace.pftrace", "trace.1.pftrace"):
        assert [each.name for each in Drawn(place.stored / "run" / name).slices] == ["work"]
    assert list(place.temporary.iterdir()) == list(place.cwd.iterdir()) == []


def two(place: Place) -> None:
    write_trace(place.cwd / "a.pftrace", Host("node0"), program(0, 10))
    write_trace(place.cwd / "b.pftrace", Host("node0"), program(1, 11), number=1)


def test_a_merge_done_again_does_not_take_in_its_own(place: Place) -> None:
    two(place)
    for name in ("a.pftrace", "b.pftrace"):
        shutil.move(place.cwd / name, place.stored / name)
    for pattern in ("flaky://*.pftrace", "flaky://"):
        done = place.run([*GPUTRACE, "merge", pattern, "-o", "flaky://all.pftrace", "--strict"])
        [line] = said(done.stderr)
        assert (done.returncode, line.partition(":")[0]) == (0, "wrote flaky")
        assert "2 traces" in line
    assert len(Drawn(place.stored / "all.pftrace").slices) == 2 * len(Drawn(place.stored / "a.pftrace").slices)
    done = place.run([*GPUTRACE, "merge", "flaky://a.pftrace", "-o", "flaky://a.pftrace"])
    assert said(done.stderr) == [
        "-o flaky://a.pftrace is one of the traces to merge, and would be lost: give another name"
    ]


def test_merge_and_convert_fail_where_it_is_not_brought(place: Place) -> None:
    two(place)
    for command in (
        ["merge", "a.pftrace", "b.pftrace", "-o", "flaky://all.pftrace"],
        ["convert", "a.pftrace", "flaky://slices.csv"],
    ):
        (place.stored / ".refused").touch()
        done = place.run([*GPUTRACE, *command])
        assert done.returncode == 1
        assert b": Access Denied. The whole file is kept: " in done.stderr
        kept = place.kept(said(done.stderr))
        assert kept.stat().st_size > 100
        shutil.rmtree(kept.parent)
        (place.stored / ".refused").unlink()
        done = place.run([*GPUTRACE, *command])
        assert done.returncode == 0, done.stderr
        assert (place.stored / kept.name).stat().st_size > 100


def test_ctrl_c_while_a_merge_is_brought(place: Place) -> None:
    two(place)
    (place.stored / ".hang").touch()
    command = [*GPUTRACE, "merge", "a.pftrace", "-o", "flaky://all.pftrace"]
    running = start(command, place.cwd, env=place.environment, stderr=subprocess.PIPE)
    wait_for(place.stored / ".hanging")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert len(gputrace.read(place.kept(said(err))).slices) > 0


def test_a_killed_recording_is_recovered_to_there(place: Place) -> None:
    program = f"{ONE_SPAN}\nimport os, signal\nos.kill(os.getppid(), signal.SIGKILL)"
    assert place.record("flaky://trace.pftrace", program).returncode == -signal.SIGKILL
    [folder] = place.temporary.glob("*/.trace.pftrace.*")
    done = place.run([*GPUTRACE, "merge", folder, "-o", "flaky://trace.pftrace"])
    assert done.returncode == 0, done.stderr
    assert len(Drawn(place.stored / "trace.pftrace").slices) == 1
