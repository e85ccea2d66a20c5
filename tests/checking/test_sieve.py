"""What a trace is found at fault with as it is read is what it is found at fault with whole; in memory that stays."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gputrace.exporters.perfetto import Perfetto

import gputrace
from gputrace.checking import sieve
from gputrace.checking.rules import ABSURD_NS, check
from gputrace.checking.sieve import sifted
from gputrace.model import BEGIN, END, INSTANT, SLICE
from tests.checking.test_rules import CASES
from tests.exporters.recordings import Script, write
from tests.merging.making import Host, write_trace


def faulty(chance: random.Random, number: int) -> Script:
    """Launches and their kernels, now and then before them, without an end, days long, days later, or never placed."""
    script = Script(number, 100 + number, f"rank {number}")
    thread, other, stream = script.thread("T0"), script.thread("T1"), script.stream()
    now, device = 0, 0
    for flow in range(1, chance.randrange(2, 60)):
        now += ABSURD_NS + chance.randrange(9) if chance.random() < 0.03 else chance.randrange(1, 50)
        args = {"gpu": chance.choice(("refused", "left out"))} if chance.random() < 0.1 else None
        bears = 0 if args else flow
        lasts = ABSURD_NS + 1 if chance.random() < 0.03 else chance.randrange(5)
        track = chance.choice((thread, other))
        if chance.random() < 0.2:
            script.add(track, (now, BEGIN, chance.choice("abc"), args, bears), (now, INSTANT, "mark", {"gpu": "no"}))
            now += lasts
            if chance.random() < 0.7:
                script.add(track, (now, END, None, chance.choice((None, {"gpu": "at its end"}))))
        elif chance.random() < 0.1:
            script.add(track, (now, END))
        else:
            script.add(track, (now, SLICE, chance.choice("abc"), args, bears, now + lasts))
            now += lasts
        if bears and chance.random() < 0.9:
            device = max(device, now + chance.randrange(-60, 30), 0)
            script.add(stream, (device, SLICE, "kernel", None, flow, device + chance.randrange(20)))
            device += 20
    return script


@pytest.mark.parametrize("seed", range(60))
def test_any_faults_of_any_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(sieve, "_CHUNK_BYTES", chance.choice((30, 100, 1_000, 1 << 20)))
    monkeypatch.setattr(sieve, "_ARROWS_KEPT", chance.choice((0, 5, 1 << 16)))
    path = write_trace(tmp_path / "t.pftrace", Host("h"), faulty(chance, 0), faulty(chance, 1))
    monkeypatch.setattr(sieve, "read", _never)
    whole = gputrace.read(path)
    found = sifted(path)
    assert check(found.trace) == check(whole)
    assert found.slices == len(whole.slices)
    assert found.trace.tracks == whole.tracks
    assert len(found.trace.slices) < max(len(whole.slices), 1)


def _never(*_: Any) -> Any:
    raise AssertionError("it was read whole")


@pytest.mark.parametrize("trace", [case[1] for case in CASES], ids=[f"{case[0]}: {case[3]}" for case in CASES])
def test_what_is_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: bytes) -> None:
    monkeypatch.setattr(sieve, "_CHUNK_BYTES", 100)
    (tmp_path / "t").write_bytes(trace)
    assert check(sifted(tmp_path / "t").trace) == check(gputrace.read(tmp_path / "t")) != []


def peak_bytes(path: Path, events: int) -> int:
    """The most that is held while a trace is looked at that has so many slices on each of two rows."""
    script = Script()
    thread, stream = script.thread(), script.stream()
    for k in range(events):
        script.add(thread, (10 * k, SLICE, f"launch {k % 9}", {"n": k}, k + 1, 10 * k + 5))
        script.add(stream, (10 * k + 7, SLICE, "kernel", None, k + 1, 10 * k + 9))
    path.write_bytes(write(Perfetto, script))
    del script
    tracemalloc.start()
    try:
        found = sifted(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert found.slices == 2 * events
        assert check(found.trace) == []


def test_memory_does_not_grow_with_the_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "_CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(sieve, "_ARROWS_KEPT", 1 << 10)
    peak_bytes(tmp_path / "warm.pftrace", 100)  # what is imported
    little, much = (peak_bytes(tmp_path / "t.pftrace", events) for events in (3_000, 20_000))
    # Its columns alone would be over 40 bytes for each of 34,000 more slices.
    assert much - little < 300_000
