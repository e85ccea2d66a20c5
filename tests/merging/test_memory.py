"""What is kept of each event takes about as much memory as it is long, and as little time however deep it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gputrace.merging import transfer
from gputrace.merging.events import event_of, text
from gputrace.merging.transfer import Transfer
from tests.benchmarks.memory import resident_mb

EVENT = {"ph": "B", "pid": 100, "tid": 100, "name": "kernel 48", "ts": 2.093}
KEPT = 50_000


def test_an_event_s_text_takes_no_more_than_its_size() -> None:
    before = resident_mb()
    kept = [text(EVENT) for _ in range(KEPT)]
    assert resident_mb() - before < 50  # at 4 KB each it would be 200
    assert event_of(kept[-1]) == EVENT


class Exporting:
    """Takes whatever it is given."""

    def open_track(self, track: Any) -> None: ...
    def write(self, track: Any, edges: Any) -> None: ...
    def flush(self) -> None: ...


def test_a_deep_slice_is_looked_at_no_more_often_than_a_flat_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = 0

    class Counting(transfer._Open):
        def __setattr__(self, name: str, value: Any) -> None:
            nonlocal changes
            changes += 1
            super().__setattr__(name, value)

    monkeypatch.setattr(transfer, "_Open", Counting)
    moved = Transfer(str(tmp_path), lambda pid, name, order: Exporting())  # type: ignore[arg-type,return-value]
    for k in range(5_000):
        moved.add({**EVENT, "ts": k}, k)
    moved.write()
    assert moved.unfinished == 5_000
    assert changes <= 4 * 5_000
