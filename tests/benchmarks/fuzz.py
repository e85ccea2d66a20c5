"""Feeds every reader damaged inputs for a bounded time, from a seed that is new each time: how many it failed on.

    python -m tests.benchmarks.fuzz READER SEED SECONDS FOLDER

A reader fails where it raises what is no error of gputrace's, is silent on what it could not read, takes too long, or
takes its process with it. It stops there: the seed is told, and what it was given stays in "given" in the folder that
is told. The seed alone gives the same inputs again. What a longer run finds becomes a test beside the reader's others.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import gputrace
from gputrace.errors import GputraceError
from gputrace.merging.merge import Options, merge
from gputrace.reading.mending import mend
from gputrace.record.recording import recover
from tests.benchmarks.figures import Row, in_child
from tests.exporters.recordings import FORMATS
from tests.merging import test_fuzz as merging
from tests.merging.test_fuzz import harmed
from tests.record import test_damage as notes
from tests.record import test_rot as rot
from tests.record import test_salvage as salvage
from tests.record.programs import killed
from tests.recorded import EXPORTERS

SECONDS, QUICK_SECONDS = 30, 3
#: For one input, and it is a small one.
LIMIT_S = 20
KINETO = Path(__file__).parents[1] / "merging" / "kineto.json"

#: Called with chance, what is not changed, and an empty folder: puts damaged files there, then reads them.
Reader = Callable[[random.Random, list[bytes], Path], None]


def read(chance: random.Random, files: list[bytes], folder: Path) -> None:
    path = folder / "trace"
    path.write_bytes(harmed(chance, chance.choice(files)))
    with contextlib.suppress(GputraceError):
        gputrace.read(path).slices.names  # noqa: B018


def merged(chance: random.Random, files: list[bytes], folder: Path) -> None:
    paths = []
    for number in chance.sample(range(len(files)), chance.randrange(1, 4)):
        path = folder / f"{number}.bin"
        path.write_bytes(harmed(chance, files[number]) if chance.random() < 0.8 else files[number])
        paths.append(path)
    output = folder / chance.choice(["all.pftrace", "all.json"])
    outcome = merge(tuple(map(str, paths)), str(output), Options(align=chance.choice(["clock", "collectives"])))
    assert bool(outcome.path) == output.exists()
    for path in paths:
        assert str(path) in outcome.merged or any(str(path) in problem for problem in outcome.problems), path
    if outcome.path:
        merging.check(output, copied=True)


def rings(chance: random.Random, files: list[bytes], folder: Path) -> None:
    suffix = chance.choice(sorted(EXPORTERS))
    program = [
        ("begin", 5, 0, "outer", 0, {"n": 1}, False, True),
        ("begin", 5, 0, "task", 111, {}, True, True),
        ("sample", 5, 0, "loss", 0.5),
        ("commit",),
        ("begin", 5, 1, "other", 0, {"text": "größe"}, False, False),
        ("end", 5, 1, 1, 1, True),
        ("instant", 5, 2, "here", {}, True),
        ("begin", 5, 0, "last", 0, {}, False, True),
    ]
    core = killed(
        folder, salvage.load(suffix), program, chance.random() * 1.1, full=chance.random() < 0.5, suffix=suffix
    )
    ring = Path(core.folder.ring_path(core.number))
    data = bytearray(ring.read_bytes())
    places = [0, *range(65536, len(data), 65536)]
    for _ in range(chance.randrange(1, 8)):
        at = chance.choice(places) + chance.randrange(400)
        put = chance.choice(
            [chance.randbytes(chance.randrange(1, 40)), b"\xff" * 8, bytes(8), bytes([chance.randrange(5)])]
        )
        data[at : at + len(put)] = put
    ring.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
    salvage.joined(core)


def folder_notes(chance: random.Random, files: list[bytes], folder: Path) -> None:
    shards = notes.left(folder / "left", chance.choice(FORMATS))
    hit = chance.sample(notes.BOOKS, chance.randrange(1, 5))
    for name in hit:
        path = Path(shards.path, name)
        path.write_bytes(harmed(chance, path.read_bytes()))
    output = folder / f"t{shards.suffix}"
    try:
        recover(shards.path, str(output), recount=notes.recount)
    except GputraceError:
        assert {"recording", "recording.copy"} <= set(hit), hit
    else:
        assert set(gputrace.read(output).slices.names) == notes.names(0, 1, 2)


def shards(chance: random.Random, files: list[bytes], folder: Path) -> None:
    left = rot.left(folder / "left", chance.choice(FORMATS))
    shard = Path(left.shard_path(0))
    shard.write_bytes(harmed(chance, shard.read_bytes()))
    output = folder / f"t{left.suffix}"
    recover(left.path, str(output), None, rot.recount, mend)
    names = list(gputrace.read(output).slices.names)
    assert names.count("step 7") >= 1, "the other process is all there"


READERS: dict[str, tuple[str, Reader]] = {
    "protobuf": ("protobuf traces", read),
    "json": ("JSON traces", read),
    "others": ("other tools' JSON", read),
    "merge": ("traces to merge", merged),
    "rings": ("rings of killed processes", rings),
    "notes": ("notes of recordings' folders", folder_notes),
    "shards": ("shards of processes", shards),
}


def originals(reader: str, folder: Path) -> list[bytes]:
    """What is damaged: whole traces of the kinds that a reader reads."""
    ours, gzipped, in_json, kineto, system = merging.originals(folder)
    return {
        "protobuf": [ours, gzipped, system],
        "json": [in_json],
        "others": [kineto, KINETO.read_bytes()],
        "merge": [ours, gzipped, in_json, kineto, system],
    }.get(reader, [])


def measure(quick: bool = False) -> list[Row]:
    return [
        fuzzed(reader, random.SystemRandom().getrandbits(32), QUICK_SECONDS if quick else SECONDS) for reader in READERS
    ]


def fuzzed(reader: str, seed: int, seconds: float) -> Row:
    """Run one for so long in a process of its own, which may die of it."""
    kept = Path(tempfile.mkdtemp(prefix=f"gputrace-fuzz-{reader}-"))
    print(f"fuzz {reader}: seed {seed}", file=sys.stderr)
    try:
        tried, failure = in_child("fuzz", reader, str(seed), str(seconds), str(kept), fake=False)
    except subprocess.SubprocessError as error:
        tried, failure = 0, str(error)
    what = f"damaged {READERS[reader][0]} that the reader failed on"
    if failure:
        print(f"fuzz {reader}: seed {seed}, what it was given is in {kept}\n{failure}", file=sys.stderr)
        return Row(what, 1, 0, unit="", aside=f"seed {seed}, kept in {kept}")
    shutil.rmtree(kept)
    return Row(what, 0, 0, unit="", aside=f"of {tried:,}")


def main(reader: str, seed: str, seconds: str, folder: str) -> None:
    _, look = READERS[reader]
    place, tried, failure = Path(folder) / "given", 0, ""
    with tempfile.TemporaryDirectory() as beside:
        files = originals(reader, Path(beside))
    until = time.monotonic() + float(seconds)
    while not failure and time.monotonic() < until:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        try:
            look(random.Random(f"{seed} {tried}"), files, place)
        except Exception:
            failure = traceback.format_exc()
        tried += 1
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps([tried, failure]))


if __name__ == "__main__":
    main(*sys.argv[1:])
