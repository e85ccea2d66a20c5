"""A recording's folder that is damaged: what is damaged or gone is told by name, and the rest is in the trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gputrace
from gputrace.cli.outcome import recount, tell
from gputrace.errors import OutputError
from gputrace.model import SLICE, Exporter
from gputrace.record.recording import Summary, recover
from gputrace.shards import ShardFolder
from gputrace.textfiles import append_line
from tests.exporters.recordings import FORMATS, RECORDING, SNAPSHOTS, Script
from tests.merging.making import Drawn, Host, write_trace
from tests.record.running import GPUTRACE, run

#: What each of the three processes draws: slices on its thread, windows on its stream.
SLICES, WINDOWS = 5, 3
PIDS = [101, 102, 103]
BOOKS = ["recording", "recording.copy", "metadata", "snapshots", "processes", "writers", "nested", "notes"]
BOOKS += [f"{number}.report" for number in range(3)]


def script(number: int) -> Script:
    made = Script(number, PIDS[number], f"process{number}.py")
    thread, stream = made.thread(), made.stream()
    made.add(thread, *((at * 1000, SLICE, f"slice {number}", None, 0, at * 1000 + 500) for at in range(SLICES)))
    made.add(stream, *((at * 1000, SLICE, f"window {number}", None, 0, at * 1000 + 700) for at in range(WINDOWS)))
    return made


def left(path: Path, exporter: type[Exporter], clean: tuple[bool, ...] = (True, True, True)) -> ShardFolder:
    """What three processes left in a folder; the launcher died. Those that are not ``clean`` made no last report."""
    path.mkdir()
    suffix = ".pftrace" if exporter is FORMATS[0] else ".json"
    name = f"{exporter.__module__}:{exporter.__qualname__}"
    folder = ShardFolder.create(str(path), RECORDING, suffix, name, "simulated")
    folder.write_metadata({"gputrace_version": gputrace.__version__, "command_line": ["python", "train.py"]})
    for snapshot in SNAPSHOTS:
        folder.add_snapshot(snapshot)
    folder.add_nested("inner.pftrace")
    folder.add_note("77 /usr/bin/python3: OSError: none")
    for number, pid in enumerate(PIDS):
        shard = script(number).shard(exporter)
        Path(folder.shard_path(number)).write_bytes(shard)
        folder.add_process(pid, "/usr/bin/python3")
        append_line(f"{folder.path}/writers", f"{number} {pid} 5 /usr/bin/python3")
        folder.write_report(number, report(pid, len(shard), ended=clean[number]))
    return folder


def report(pid: int, shard_bytes: int, *, ended: bool) -> dict[str, int | str | list[str]]:
    counts = {"slices": SLICES + WINDOWS, "windows": WINDOWS, "dropped": 2, "worst_uncertainty_ns": 900}
    return {"pid": pid, **counts, "shard_bytes": shard_bytes, "ended": int(ended)}


def merged(folder: ShardFolder, capsys: pytest.CaptureFixture[str]) -> tuple[Summary, list[str]]:
    """The summary, and the lines that `gputrace merge` says."""
    summary = recover(folder.path, f"{folder.path}{folder.suffix}", recount=recount)
    tell(summary, quiet=False)
    return summary, capsys.readouterr().err.replace("\ngputrace: ", "\n").removeprefix("gputrace: ").splitlines()


def drawn(folder: ShardFolder) -> set[str]:
    return set(gputrace.read(f"{folder.path}{folder.suffix}").slices.names)


def names(*numbers: int) -> set[str]:
    return {f"{what} {number}" for what in ("slice", "window") for number in numbers}


formats = pytest.mark.parametrize("exporter", FORMATS, ids=["perfetto", "chrome"])


@formats
def test_undamaged(tmp_path: Path, exporter: type[Exporter], capsys: pytest.CaptureFixture[str]) -> None:
    folder = left(tmp_path / "left", exporter)
    summary, lines = merged(folder, capsys)
    assert len(lines) == 2, lines  # the note, and the file
    assert "24 slices, 9 GPU windows, 6 dropped, placed to within 900 ns;" in lines[-1]
    assert drawn(folder) == names(0, 1, 2)
    assert not summary.damaged
    assert not os.path.exists(folder.path)


@formats
@pytest.mark.parametrize("how", ["gone", "empty", "shorter"])
def test_a_shard_is_not_all_there(
    tmp_path: Path, exporter: type[Exporter], how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = left(tmp_path / "left", exporter)
    shard = Path(folder.shard_path(1))
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2] if how == "shorter" else b"")
    if how == "gone":
        shard.unlink()
    summary, lines = merged(folder, capsys)
    what = {
        "gone": "is gone",
        "empty": "is empty",
        "shorter": f"holds {len(whole) // 2:,} of the {len(whole):,} bytes that were in it",
    }[how]
    assert f"left/1.shard (process 102) {what}: what is not there is missing in the trace" in lines
    assert names(0, 2) <= drawn(folder) <= names(0, 1, 2)
    # What is counted is what is drawn, whatever its process had said of it.
    rows = Drawn(Path(f"{folder.path}{folder.suffix}")).slices
    assert summary.slices == len(rows)
    assert summary.windows == sum(each.name is not None and each.name.startswith("window") for each in rows)
    assert summary.processes == (3 if how == "shorter" else 2)
    assert (summary.dropped, summary.worst_uncertainty_ns, summary.unbounded) == (6, 900, 0)
    assert lines[-2].startswith(f"{folder.path} stays, as not all of it could be read")
    assert os.path.exists(folder.path), "whoever finds the missing part can put it back"


def test_without_counting_anew_what_is_left_of_a_shard_is_not_counted(tmp_path: Path) -> None:
    folder = left(tmp_path / "left", FORMATS[0])
    os.truncate(folder.shard_path(1), 300)
    summary = recover(folder.path, f"{folder.path}.pftrace")
    assert (summary.slices, summary.windows) == (2 * (SLICES + WINDOWS), 2 * WINDOWS)
    assert summary.is_lower_bound


@formats
def test_no_bound_is_stated_that_nobody_measured(
    tmp_path: Path, exporter: type[Exporter], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = left(tmp_path / "left", exporter, clean=(True, False, False))
    folder.write_report(1, report(102, 0, ended=False) | {"windows": 1})  # two more came after it
    os.unlink(f"{folder.path}/2.report")
    assert (
        "9 GPU windows, at least 4 dropped, placed to within 900 ns, but for 5 of which it is not known"
        in (merged(folder, capsys)[1][-1])
    )
    folder = left(tmp_path / "none", exporter, clean=(False, False, False))
    for number in range(3):
        os.unlink(f"{folder.path}/{number}.report")
    assert "9 GPU windows, how well they are placed is not known;" in merged(folder, capsys)[1][-1]


@formats
def test_beside_other_traces_and_strictly(tmp_path: Path, exporter: type[Exporter]) -> None:
    folder = left(tmp_path / "left", exporter)
    other = write_trace(tmp_path / "other.pftrace", Host("other", boottime_ns=5 * 10**12), script(0), number=7)
    for damaged in (False, True):
        if damaged:
            Path(folder.path, "0.report").write_bytes(b"no")
            os.unlink(folder.shard_path(1))
        output = tmp_path / f"all{folder.suffix}"
        words = [*GPUTRACE, "merge", "left", other.name, "-o", output.name, "--strict"]
        done = run(words, tmp_path)
        assert done.returncode == damaged, done.stderr
        assert (b"left/0.report (process 101) is cut short or damaged" in done.stderr) == damaged
        assert (b"left/1.shard (process 102) is gone" in done.stderr) == damaged
        assert set(gputrace.read(output).slices.names) == names(0, *([] if damaged else [1]), 2)
    done = run([*GPUTRACE, "merge", "left", "-o", f"t{folder.suffix}", "--strict"], tmp_path)
    assert done.returncode == 1


@formats
@pytest.mark.parametrize("name", BOOKS)
@pytest.mark.parametrize("how", ["empty", "truncated", "garbage", "types"])
def test_a_damaged_file_costs_no_other(
    tmp_path: Path, exporter: type[Exporter], name: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = left(tmp_path / "left", exporter)
    path = Path(folder.path, name)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "truncated": whole[:-5],
            "garbage": bytes(255 - byte for byte in whole),
            "types": b'id=1\nbase_ns="x\nslices+"a\nended="yes\npid="\nboottime_offset_ns=' + b"9" * 5000 + b"\n",
        }[how]
    )
    summary, lines = merged(folder, capsys)
    assert drawn(folder) == names(0, 1, 2)
    assert (summary.slices, summary.windows) == (3 * (SLICES + WINDOWS), 3 * WINDOWS)
    told = [line for line in lines if line.startswith(f"left/{name} ")]
    # Nothing is read of the copy while the first is whole; and notes may be any text.
    assert len(told) == (name not in ("recording.copy", "notes")), lines


def test_nothing_can_be_made_of_a_folder_that_lost_both(tmp_path: Path) -> None:
    folder = left(tmp_path / "left", FORMATS[0])
    Path(folder.path, "recording").write_bytes(b"")
    Path(folder.path, "recording.copy").write_bytes(b"\0" * 300)
    with pytest.raises(OutputError) as failed:
        recover(folder.path, str(tmp_path / "t.pftrace"))
    assert str(failed.value) == (
        f"no trace can be made of {folder.path}: its file 'recording' is empty, and its file 'recording.copy' is cut "
        "short or damaged"
    )


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    at = draw(st.integers(0, max(len(whole) - 1, 0)))
    return draw(
        st.sampled_from(
            [
                whole[:at],
                whole[at:],
                whole[:at] + bytes(min(64, len(whole) - at)) + whole[at + 64 :],
                whole[:at] + bytes([draw(st.integers(0, 255))]) + whole[at + 1 :],
                whole[:at] + draw(st.binary(max_size=20)) + whole[at:],
                draw(st.binary(max_size=200)),
                whole + whole,
            ]
        )
    )


@formats
def test_any_damage_to_any_files(tmp_path: Path, exporter: type[Exporter]) -> None:
    pristine = left(tmp_path / "left", exporter)
    files = {name: Path(pristine.path, name).read_bytes() for name in BOOKS}

    @settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def one(data: st.DataObject) -> None:
        path = tmp_path / "one"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(pristine.path, path)
        hit = data.draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=4, unique=True))
        for name in hit:
            (path / name).write_bytes(data.draw(damaged(files[name])))
        output = tmp_path / f"one{pristine.suffix}"
        output.unlink(missing_ok=True)
        assert_merged(path, output, files, hit)

    one()


def assert_merged(path: Path, output: Path, files: dict[str, bytes], hit: list[str]) -> None:
    changed = {name for name in hit if (path / name).read_bytes() != files[name]}
    told = {name for name in changed if not _lost_lines_alone(name, (path / name).read_bytes(), files[name])}
    if {"recording", "recording.copy"} <= changed:
        with pytest.raises(OutputError, match="no trace can be made of") as failed:
            recover(str(path), str(output), recount=recount)
        assert "gputrace merge" not in str(failed.value)
        return
    summary = recover(str(path), str(output), recount=recount)
    text = "\n".join(summary.told)
    for name in told - {"recording.copy", "notes"}:
        assert f"one/{name} " in text, (name, text)
    assert (summary.slices, summary.windows) == (3 * (SLICES + WINDOWS), 3 * WINDOWS)
    assert set(gputrace.read(output).slices.names) == names(0, 1, 2)


def _lost_lines_alone(name: str, now: bytes, whole: bytes) -> bool:
    """Are lines missing or there twice, of a file of nothing but lines? Nobody can tell."""
    of_lines = name not in ("recording", "recording.copy", "metadata") and not name.endswith(".report")
    return of_lines and bool(now) and set(now.split(b"\n")) <= set(whole.split(b"\n"))
