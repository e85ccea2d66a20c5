"""A ring is read whatever its bytes: every committed edge is found, and nothing makes the reader stumble."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputrace.model import FLOW, Flow, Recording
from gputrace.record.ringfile import NO_NAME, Ring, RingEdge, dropped
from gputrace.shards import ShardFolder
from tests import ringwriter
from tests.record.rows import Rows
from tests.ringwriter import BEGIN, END, EXPLICIT, HEADER, INSTANT, PIECE, SAMPLE, Core, Killed

quick = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

ARGS = {
    "bool": True,
    "int": -5,
    "edges": -(1 << 63),
    "wide": 1 << 70,
    "float": 0.1,
    "text": "größe \ud800 \0",
    "": "",
    FLOW: Flow((1 << 43) + 1),
}


@pytest.fixture
def core(tmp_path: Path) -> Core:
    return make_core(tmp_path)


def make_core(path: Path, **options: Any) -> Core:
    path /= f"shards{len(list(path.iterdir()))}"
    path.mkdir()
    folder = ShardFolder.create(str(path), Recording("ab" * 16, 0, 0), ".rows", "tests.record.rows:Rows", "host")
    return Core(folder, Rows, **options)


def read(core: Core) -> dict[int, list[RingEdge]]:
    """What is read of each thread beyond what the shard has."""
    core.die()
    with Ring(core.folder.ring_path(core.number)) as ring:
        epoch = ring.epoch(os.path.getsize(core.folder.shard_path(core.number)))
        return {thread: list(ring.edges(thread, epoch)) for thread in ring.threads(epoch)}


def said(edge: RingEdge | ringwriter.Edge) -> tuple[Any, ...]:
    stream = edge.has_stream if isinstance(edge, RingEdge) else edge.stream
    name = "" if edge.kind == END else edge.name
    number = 0 if edge.kind == SAMPLE else edge.number
    args = {key: (type(value), value) for key, value in edge.args.items()} if edge.args else {}
    return (edge.kind, edge.ns, number, name, args, edge.scope, stream, repr(edge.value), edge.unit)


@pytest.mark.parametrize("intern", [True, False], ids=["names by number", "names as text"])
def test_everything_an_edge_says(core: Core, intern: bool) -> None:
    thread = core.thread("größe", 7)
    number = core.begin(thread, 5, "step \ud800", args=ARGS, stream=True, intern=intern)
    core.begin(thread, 6, "task", scope=1 << 47, intern=intern)
    core.begin(thread, 6, "window", scope=EXPLICIT, intern=intern)
    core.instant(thread, 7, "", args={"a": 1}, intern=intern)
    core.sample(thread, 8, "loss", -3, "bytes", intern=intern)
    core.sample(thread, 9, "loss", 1.5, intern=intern)
    core.end(thread, 10, number, args={"error": "ValueError", "ended": "abandoned"}, intern=intern)
    assert [said(edge) for edge in read(core)[thread]] == [said(edge) for edge in core.edges]


def test_threads_and_what_is_open(core: Core) -> None:
    main, other = core.thread("MainThread", 7), core.thread("x" * 200, 8)
    outer = core.begin(main, 1, "outer")
    inner = core.begin(main, 2, "inner")
    task = core.begin(main, 3, "task", scope=99)
    core.commit()
    core.end(main, 4, inner)
    core.commit()
    core.instant(other, 5, "new")
    core.die()
    with Ring(core.folder.ring_path(core.number)) as ring:
        assert ring.tracks == 2
        threads = ring.threads(2)
        assert [(t.number, t.tid, t.name, t.track) for t in threads.values()] == [
            (main, 7, "MainThread", 1),
            (other, 8, "x" * 96, 0),
        ]
        assert ring.threads(0)[main].track == 0
        assert [(s.number, s.thread, s.track) for s in ring.open_spans(2)] == [(outer, main, 1), (task, main, 2)]
        assert ring.open_spans(0) == []


def test_an_epoch_counts_once_all_of_it_is_in_the_shard(core: Core) -> None:
    """With it come the GPU windows that it wrote, which no ring has."""
    core.instant(core.thread("MainThread", 7), 1, "first")
    core.commit()
    before = core.written
    core.instant(1, 2, "second")
    store = core.ring.store

    def all_but_the_last(at: int, form: str, *values: Any) -> None:
        if (at, values) == (16, (2,)):  # what says that epoch 2 is whole
            raise Killed
        store(at, form, *values)

    core.ring.store = all_but_the_last  # type: ignore[method-assign]
    with pytest.raises(Killed):
        core.commit()
    core.die()
    with Ring(core.folder.ring_path(core.number)) as ring:
        assert (ring.epoch(core.written), ring.length(2)) == (2, core.written)
        assert (ring.epoch(core.written - 1), ring.length(1)) == (1, before)


def test_pieces_that_fill_up_are_read_in_order(core: Core) -> None:
    thread, other = core.thread("a", 7), core.thread("b", 8)
    for n in range(3000):
        core.instant(thread if n % 3 else other, n, "x" * (n % 40), {"n": n}, intern=False)
        if n == 2200:
            core.commit()
    core.instant(thread, 3001, "longer than a piece", {"text": "y" * 200_000})
    core.instant(other, 3002, "after")
    found = read(core)
    for number in (thread, other):
        rest = [edge for edge in core.edges[2201:] if edge.thread == number]
        assert [said(edge) for edge in found[number]] == [said(edge) for edge in rest]


def test_a_record_that_was_not_finished_is_none(core: Core) -> None:
    thread = core.thread("a", 7)
    core.instant(thread, 1, "whole")
    core.ring.kill_at = core.ring.steps + 3
    with pytest.raises(Killed):
        core.instant(thread, 2, "torn", {"n": 1})
    assert [edge.name for edge in read(core)[thread]] == ["whole"]


def test_a_name_that_was_lost(core: Core) -> None:
    thread = core.thread("a", 7)
    core.begin(thread, 1, "lost", args={"key": 1})
    core.begin(thread, 2, "lost")
    ring = core.ring
    struct.pack_into("<I", ring.data, ring.tables[ringwriter.NAMES] + 64, 0)
    assert [(edge.name, edge.args) for edge in read(core)[thread]] == [(NO_NAME, {NO_NAME: 1}), (NO_NAME, None)]


def test_a_kind_of_a_later_version_is_passed_over(core: Core) -> None:
    thread = core.thread("a", 7)
    for n in range(3):
        core.instant(thread, n, "x", {"n": n})
    [(_, piece, _)] = core.ring.pieces
    core.ring.data[piece + 64 + 64] = 77
    assert [edge.ns for edge in read(core)[thread]] == [0, 2]


@pytest.mark.parametrize("data", [b"", b"gputrng1", bytes(HEADER), b"gputrng2" + bytes(HEADER)])
def test_no_ring(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "0.ring").write_bytes(data)
    with pytest.raises(ValueError, match=r"ring|short"):
        Ring(str(tmp_path / "0.ring"))


def test_links_and_pipes_are_not_read(core: Core, tmp_path: Path) -> None:
    core.die()
    (tmp_path / "link").symlink_to(core.folder.ring_path(core.number))
    with pytest.raises(OSError, match="symbolic links"):
        Ring(str(tmp_path / "link"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="short"):
        Ring(str(tmp_path / "pipe"))


# --- any bytes --------------------------------------------------------------------------------------------------------


def read_all(path: Path) -> int:
    """Read everything there is to read; how many edges."""
    try:
        ring = Ring(str(path))
    except ValueError:
        return 0
    with ring:
        count = 0
        for epoch in (0, ring.epoch(1 << 20), 1 << 63):
            ring.length(epoch)
            ring.open_spans(epoch)
            for thread in ring.threads(epoch):
                edges = list(ring.edges(thread, epoch))
                assert len(edges) == len(list(ring.outline(thread, epoch)))
                assert len(edges) <= path.stat().st_size // 32
                count += len(edges)
        return count


@quick
@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.binary(max_size=400), st.booleans()), max_size=4
    ),
    rest=st.binary(max_size=300),
)
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, pieces: list[Any], rest: bytes) -> None:
    path = tmp_path_factory.mktemp("random") / "0.ring"
    data = struct.pack("<8sII", b"gputrng1", 1, PIECE) + rest.ljust(HEADER - 16, b"\xff")[: HEADER - 16]
    for kind, units, body, again in pieces:
        start = struct.pack("<II", kind, units) + bytes(56)
        data += (start + (body * (PIECE // (len(body) or 1)) if again else body)).ljust(PIECE, b"\0")[:PIECE]
    path.write_bytes(data + rest)
    read_all(path)


def busy(path: Path, **options: Any) -> Core:
    """A ring with all there can be in one, on several pieces of three threads."""
    core = make_core(path, **options)
    threads = [core.thread(f"thread {n}", 100 + n) for n in range(3)]
    open_spans = []
    for n in range(160):
        thread = threads[n % 3]
        if n % 4 == 3 and open_spans:
            core.end(thread, n, open_spans.pop())
        elif n % 4 == 2:
            core.sample(thread, n, "loss", n / 2, "bytes")
        else:
            args = {"text": "x" * 3000, **ARGS} if n % 2 else {"n": n}
            open_spans.append(core.begin(thread, n, f"name {n % 9}", (0, 5, EXPLICIT)[n % 3], args, intern=n % 5 > 0))
        if n == 40:
            core.commit()
    return core


@quick
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 1 << 30), st.sampled_from([b"\xff", b"\0", b"\x01", b"\xff" * 8, b"\0" * 32])),
        min_size=1,
        max_size=12,
    ),
    cut=st.none() | st.integers(0, 1 << 30),
    near_headers=st.booleans(),
)
def test_mutations(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], cut: int | None, near_headers: bool
) -> None:
    """Whatever is changed, what stands in pieces that were left alone is found, unless a size hides them."""
    core = busy(tmp_path_factory.mktemp("mutations"), first=PIECE - 2000)
    data = core.ring.data
    pieces = {piece: length for _, piece, length in core.ring.pieces}
    whole = {at: edges_of(core, at) for at in pieces}
    assert sum(map(len, whole.values())) > 100
    touched, hides = set(), False
    for place, change in changes:
        at = place % len(data)
        if near_headers:
            at = PIECE + at // PIECE * PIECE + at % 96
        at = max(min(at, len(data) - len(change)), HEADER)
        data[at : at + len(change)] = change
        touched |= {piece for piece, length in pieces.items() if at < piece + length and at + len(change) > piece}
        hides |= any(piece + 4 < at + len(change) and at < piece + 8 for piece in range(HEADER, len(data), PIECE))
    if cut is not None:
        del data[HEADER + cut % (len(data) - HEADER) :]
        touched |= {piece for piece, length in pieces.items() if piece + length > len(data)}
    core.die()
    path = Path(core.folder.ring_path(core.number))
    read_all(path)
    if not hides:
        with Ring(str(path)) as ring:
            found = {(e.kind, e.ns) for thread in ring.threads(1) for e in ring.edges(thread, 1)}
        for piece, edges in whole.items():
            assert piece in touched or edges <= found


def edges_of(core: Core, piece: int) -> set[tuple[int, int]]:
    """The edges in one piece: (kind, time), which no other has."""
    ring, found = core.ring, set()
    at = ring.load(piece + 32)  # what the one epoch so far has is behind it
    while tag := ring.load(piece + at):
        if tag & 0xFF == ringwriter.FILL:
            break
        assert tag & 0xFF in (BEGIN, END, INSTANT, SAMPLE)
        found.add((tag & 0xFF, ring.load(piece + at + 8, "q")))
        at += 32 * (1 + (tag >> 16 & 0xFFFF))
        if at + 32 > next(length for _, start, length in ring.pieces if start == piece):
            break
    return found


@pytest.mark.parametrize("size", [0, 64, 580, 592])
def test_what_was_dropped_is_told_by_a_ring_that_says_so(tmp_path: Path, size: int) -> None:
    path = tmp_path / "0.ring"
    whole = struct.pack("<8sII560sQQ", b"gputrng1", 2, 65536, b"", 7, 9)
    path.write_bytes(whole[:size])
    assert dropped(str(path)) == ((7, 9) if size == len(whole) else None)
    path.write_bytes(whole.replace(b"\2", b"\1", 1))
    assert dropped(str(path)) is None, "of an older one"
    path.write_bytes(b"x" * 600)
    assert dropped(str(path)) is None
    assert dropped(str(tmp_path / "gone")) is None
