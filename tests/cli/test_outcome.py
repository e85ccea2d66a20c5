"""The last line of a recording, by what its summary knows."""

from __future__ import annotations

import pytest

from gputrace.cli.outcome import tell
from gputrace.record.tally import Summary


def told(capsys: pytest.CaptureFixture[str], **values: int | str) -> list[str]:
    """The lines that are said of a summary with these counts."""
    summary = Summary()
    summary.path, summary.size = "trace.pftrace", 2_000
    for name, value in values.items():
        setattr(summary, name, value)
    tell(summary, quiet=False)
    return capsys.readouterr().err.splitlines()


END = "; open it in https://ui.perfetto.dev"
ENDED = "ended without cleaning up (killed, os._exit or exec; a multiprocessing.Pool ends its workers so)"


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ({}, "5 slices, 0 GPU windows, 0 dropped"),
        ({"unfinished": 1}, "5 slices, 0 GPU windows, 0 dropped, 1 slice still open"),
        (
            {"cut_short": 1, "kept": 1, "recounted": 1},
            f"5 slices, 0 GPU windows; 1 process {ENDED}: all its recorded host slices are there",
        ),
        (
            {"cut_short": 2, "kept": 2, "recounted": 2, "drops_known": 1, "dropped": 7, "unfinished": 3},
            "5 slices, 0 GPU windows, at least 7 dropped, 3 slices still open; "
            f"2 processes {ENDED}: all their recorded host slices are there",
        ),
        (
            {"cut_short": 2, "kept": 2, "recounted": 2, "drops_known": 2, "dropped": 7},
            f"5 slices, 0 GPU windows, 7 dropped; 2 processes {ENDED}: all their recorded host slices are there",
        ),
        (
            {"cut_short": 1},
            f"at least 5 slices, 0 GPU windows; 1 process {ENDED}: slices of its last moments may be missing",
        ),
        (
            {
                "cut_short": 1,
                "kept": 1,
                "recounted": 1,
                "windows": 2,
                "cut_short_windows": 1,
                "worst_uncertainty_ns": 9,
            },
            f"5 slices, 2 GPU windows, placed to within 9 ns; 1 process {ENDED}: "
            "all its recorded host slices are there, its last GPU windows may be missing",
        ),
        (  # killed before an anchor: it had none placed yet
            {"cut_short": 1, "kept": 1, "recounted": 1, "device": "cuda"},
            f"5 slices, 0 GPU windows; 1 process {ENDED}: "
            "all its recorded host slices are there, GPU windows, if it had any, are missing",
        ),
        (  # the windows are another's
            {"cut_short": 2, "kept": 2, "recounted": 2, "windows": 2, "worst_uncertainty_ns": 9, "device": "cuda"},
            f"5 slices, 2 GPU windows, placed to within 9 ns; 2 processes {ENDED}: "
            "all their recorded host slices are there, GPU windows, if they had any, are missing",
        ),
    ],
)
def test_counts(capsys: pytest.CaptureFixture[str], counts: dict[str, int | str], line: str) -> None:
    assert told(capsys, slices=5, **counts) == [f"gputrace: wrote trace.pftrace: 2.0 kB, {line}{END}"]


def test_no_room(capsys: pytest.CaptureFixture[str]) -> None:
    why, last = told(capsys, slices=5, dropped=4, no_room=3)
    assert why.startswith("gputrace: 3 spans came faster than they could be written and found no room: --max-size ")
    assert ", 4 dropped" in last
