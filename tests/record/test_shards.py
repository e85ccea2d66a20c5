"""The folder: numbers are taken once, and every file is readable however its writer ended."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from gputrace import hostclock
from gputrace.errors import OutputError
from gputrace.model import ClockSnapshot, Recording
from gputrace.shards import LAUNCHER, ShardFolder, process_image
from gputrace.textfiles import write_values
from tests.record.running import PYTHON


@pytest.fixture
def folder(tmp_path: Path) -> ShardFolder:
    return ShardFolder.create(str(tmp_path), Recording("ab" * 16, 123, -456), ".pftrace", "some.module:Class", "host")


def test_opened_is_as_created(folder: ShardFolder) -> None:
    opened = ShardFolder.open(folder.path)
    assert (opened.path, opened.suffix, opened.exporter, opened.device) == (
        folder.path,
        ".pftrace",
        "some.module:Class",
        "host",
    )
    assert (opened.recording.id, opened.recording.base_ns, opened.recording.boottime_offset_ns) == (
        "ab" * 16,
        123,
        -456,
    )


def test_a_folder_without_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ShardFolder.open(str(tmp_path))
    (tmp_path / "recording").write_text('id="abc\nbase_ns=1')  # torn
    with pytest.raises(
        OutputError, match=r"'recording' is cut short or damaged, and its file 'recording\.copy' is not"
    ):
        ShardFolder.open(str(tmp_path))
    write_values(str(tmp_path / "recording"), {"id": "ab", "base_ns": "1"})
    with pytest.raises(OutputError, match="'recording' has no 'base_ns'"):
        ShardFolder.open(str(tmp_path))


def test_numbers_count_from_0_and_files_are_private(folder: ShardFolder) -> None:
    assert [folder.claim() for _ in range(12)] == list(range(12))
    assert folder.numbers() == list(range(12))
    assert stat.S_IMODE(os.stat(folder.shard_path(0)).st_mode) == 0o600


def test_no_two_processes_get_the_same_number(folder: ShardFolder) -> None:
    program = "import sys; from gputrace.shards import ShardFolder; f = ShardFolder.open(sys.argv[1]); "
    program += "print([f.claim() for _ in range(200)])"
    processes = [
        subprocess.Popen([PYTHON, "-c", program, folder.path], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    taken = [number for process in processes for number in eval(process.communicate(timeout=60)[0])]
    assert len({*taken}) == len(taken) == 800
    assert max(taken) < 1600, "a number may be passed over in a race, but not by the hundred"


def test_a_link_in_a_shards_place_is_not_followed(folder: ShardFolder, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    os.symlink(victim, folder.shard_path(0))
    assert folder.claim() == 1
    assert not victim.exists()


def test_reports_come_back_as_written(folder: ShardFolder) -> None:
    values: dict[str, int | str | list[str]] = {
        "slices": 12,
        "skew": -3,
        "name": 'a "quoted" \\n back\\slash\nnew line = x\ud800',
        "number_like": "12",
        "told": ["one", "two\nlines", ""],
        "empty": "",
    }
    folder.write_report(3, values)
    folder.write_report(0, {"slices": 1})
    folder.write_report(0, {"slices": 2})
    values["name"] = str(values["name"]).replace("\ud800", "?")
    assert folder.reports() == {0: {"slices": 2}, 3: values}


def test_a_damaged_report_is_none(folder: ShardFolder) -> None:
    folder.write_report(0, {"slices": 1, "windows": 22, "told": ["a"]})
    path = Path(folder.path, "0.report")
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    for at in range(len(whole)):
        damaged += [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for bit in range(8)]
        damaged.append(whole[:at] + bytes(min(8, len(whole) - at)) + whole[at + 8 :])
    damaged += [b"\xff\x00garbage\nslices=9\nwindows=x\n=\n\n", b"slices=" + b"9" * 5000 + b"\n"]
    for data in damaged:
        path.write_bytes(data)
        folder.damage.clear()
        assert folder.reports() == {0: {}}, data
        assert folder.damage == {"0.report": "is cut short or damaged" if data else "is empty"}
    path.write_bytes(whole)
    assert folder.report(0)["windows"] == 22
    assert folder.damage == {}, "as it is now, it is whole"


def test_snapshots_are_sorted_and_a_torn_line_is_told(folder: ShardFolder) -> None:
    for monotonic_ns in (5, 3, 4):
        folder.add_snapshot(ClockSnapshot(10, monotonic_ns, 20))
    with open(os.path.join(folder.path, "snapshots"), "a") as file:
        file.write("10 99")
    assert [snapshot.monotonic_ns for snapshot in folder.snapshots()] == [3, 4, 5]
    assert folder.damage == {"snapshots": "has 1 damaged line"}


def test_damaged_lines_cost_no_others(folder: ShardFolder) -> None:
    folder.add_writer(LAUNCHER)
    before, readings = folder.writers(), folder.snapshots()
    with open(f"{folder.path}/writers", "ab") as writers, open(f"{folder.path}/snapshots", "ab") as snapshots:
        for number in (b"-\x11", b"1\xff2", b"", b"9" * 5000):
            writers.write(number + b" 1 2 3\n")
            snapshots.write(b"1 2 " + number + b"\n")
    folder.add_writer(LAUNCHER)
    folder.add_snapshot(ClockSnapshot(10, 20, 30))
    assert before
    assert (folder.writers(), len(folder.snapshots())) == (before * 2, len(readings) + 1)
    assert folder.damage == dict.fromkeys(("writers", "snapshots"), "has 4 damaged lines")


def test_notes_are_lines(folder: ShardFolder) -> None:
    assert folder.notes() == []
    folder.add_note("one\nline")
    folder.add_note("\udcff")
    assert folder.notes() == ["one line", "\udcff"]


def test_a_process_is_told_from_a_later_one(folder: ShardFolder) -> None:
    assert [folder.claim(), folder.claim()] == [0, 1]
    (_, image), (number, again) = folder.writers()
    assert number == 1
    assert image == again == process_image("self") == process_image(os.getpid())
    assert image.split(" ")[0] == str(os.getpid())
    other = subprocess.Popen([PYTHON, "-c", "input()"], stdin=subprocess.PIPE)
    assert process_image(other.pid).split(" ")[1] != image.split(" ")[1]
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert process_image(other.pid) == ""
    other.communicate()
    assert process_image(other.pid) == ""


def test_the_host_clocks_agree_with_their_offset() -> None:
    snapshot = hostclock.snapshot()
    assert abs(snapshot.boottime_ns - snapshot.monotonic_ns - hostclock.boottime_offset_ns()) < 1_000_000
    assert 0 <= hostclock.now_ns() - snapshot.monotonic_ns < 10_000_000_000
