"""Names and arguments of any length: what there is no room for is cut with a mark, or left out and counted there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import Engine, counters, slices
from tests.hot.twin import TWINS, run_in

NAME, ARGS, STRING, COST, LEFT_OUT = 1 << 17, 1 << 18, 4096, 16, "args left out"

PROGRAM = """
import sys
import gputrace
from gputrace.devices.simulated import default_gpu
from tests.hot.test_text_bounds import LONG, MANY

stream = default_gpu().stream("s")
with gputrace.trace(sys.argv[1], device="simulated") as recording:
    for n, name in enumerate(LONG):
        with gputrace.span(name, stream, n=n), gputrace.span(name, n=n):
            gputrace.instant(name, n=n)
        gputrace.window(name, n=n).close()
        gputrace.span(name, n=n)(lambda: None)()
        gputrace.counter(name, n)
        gputrace.counter(f"in {n}", n, name)
    for n, args in enumerate(MANY):
        with gputrace.span(f"many {n}", stream, **args):
            gputrace.instant(f"many {n}", **args)
        gputrace.window(f"many {n}", **args).close()
        gputrace.span(f"many {n}", **args)(lambda: None)()
assert not (recording.summary.dropped or recording.summary.told), recording.summary
"""

LONG = ["x" * NAME, "y" * (NAME + 1), "\U0001f600" * (2 * NAME), "z" * (5 << 20)]

#: At the bound; one character beyond it, with one behind that has room; keys and ints that are beyond it by themselves;
#: characters of four bytes.
MANY = [
    {"a": "x" * STRING, **{f"{n:04}": "y" * (STRING - 4 - COST) for n in range(62)}, "b" * (4095 - 2 * COST): 1},
    {"a": "x" * STRING, **{f"{n:04}": "y" * (STRING - 4 - COST) for n in range(63)}, "b": 1, "": 2},
    {"k" * (ARGS - COST): 1},
    {"k" * (ARGS - COST + 1): 1, "behind": 2},
    {"wide": -(1 << 4 * (ARGS - 66)), "behind": 1 << 70},
    {"wide": 1 << 4 * ARGS, "true": True, "real": 0.5},
    {f"\U0001f600{n:03}": "\U0001f600" * STRING for n in range(100)},
    {f"{n}": n for n in range(14_000)},
]


def kept(args: dict[str, object]) -> dict[str, object]:
    """What is meant to be left of some."""
    left, found = ARGS, {}
    for key, value in args.items():
        is_wide = isinstance(value, int) and value.bit_length() > 63
        text = value if isinstance(value, str) else hex(value) if is_wide else ""
        cost = COST + len(key) + len(text)
        if cost <= left:
            left -= cost
            found[key] = text or value
    return found | ({LEFT_OUT: len(args) - len(found)} if len(found) < len(args) else {})


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
@pytest.mark.parametrize("twin", TWINS)
def test_of_any_length(tmp_path: Path, twin: str, suffix: str) -> None:
    trace = tmp_path / f"t{suffix}"
    done = run_in(twin, PROGRAM, trace)
    assert (done.returncode, done.stderr) == (0, "")
    engine = Engine(trace)
    found = slices(engine)
    names = [name if len(name) <= NAME else name[: NAME - 1] + "…" for name in LONG]
    for n, name in enumerate(names):
        of_this = [s for s in found if s.args.get("n") == n and not (s.name or "").startswith("many")]
        assert len(of_this) == 6
        assert {s.name for s in of_this} == {name}
    counted = {path[-1].removesuffix(" value") for path in counters(engine)}
    assert counted >= set(names)
    for n, args in enumerate(MANY):
        of_this = [s for s in found if s.name == f"many {n}"]
        assert len(of_this) == 5
        for s in of_this:
            assert {key: value for key, value in s.args.items() if key != "placement"} == kept(args), n
    assert [LEFT_OUT in kept(args) for args in MANY] == [False, True, False, True, False, True, True, True]
