"""Whatever a program passes, the trace loads and what comes after is in it; the program is never told."""

from __future__ import annotations

import ctypes
import decimal
import enum
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gputrace
from tests.engine import slices
from tests.recorded import EXPORTERS, Run, recording

pytestmark = pytest.mark.parametrize("suffix", list(EXPORTERS))


class Unspeakable:
    """Raises from everything it is asked."""

    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __format__ = __str__  # type: ignore[assignment]

    def __hash__(self) -> int:
        raise ValueError("no")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    def __bool__(self) -> bool:
        raise ValueError("no")

    def __getattr__(self, name: str) -> Any:
        raise ValueError("no")

    def __float__(self) -> float:
        raise ValueError("no")

    __int__ = __index__ = __float__  # type: ignore[assignment]


class Impostor:
    """Lies about its class."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise ValueError("no")


class Color(enum.IntEnum):
    RED = 3


class Word(enum.StrEnum):
    A = "a word"


class Plain(enum.Enum):
    X = 1


class Name(str):
    def __str__(self) -> str:
        return "another"

    def __len__(self) -> int:
        raise ValueError("no")


class Unlike:
    """Calls itself by a kind of str whose methods are the program's."""

    def __str__(self) -> str:
        return Name("itself")


def last_is_there(run: Run) -> None:
    assert run.named("last"), run.report
    assert run.report["told"] == []


ARGS = [
    (0, 0),
    (-1, -1),
    (2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63)),
    (True, True),
    (False, False),
    (1.5, 1.5),
    (-0.0, 0.0),
    (1e-300, 1e-300),
    (1.7976931348623157e308, 1.7976931348623157e308),
    ("", ""),
    ("x", "x"),
    ('quote " back \\ tab \t new \n line', 'quote " back \\ tab \t new \n line'),
    ("emoji 🎉 and ünï", "emoji 🎉 and ünï"),
    (Color.RED, 3),
    (Word.A, "a word"),
    (Plain.X, "Plain.X"),
    (np.float32(0.5), 0.5),
    (np.float64(0.25), 0.25),
    (np.int8(-3), -3),
    (np.uint64(7), 7),
    (np.bool_(True), True),
    (np.str_("numpy"), "numpy"),
    (np.array(4), 4),
    (np.arange(3), "[0 1 2]"),
    (decimal.Decimal("1.5"), "1.5"),
    ([1, 2], "[1, 2]"),
    (None, "None"),
    (b"bytes", "b'bytes'"),
    (int, "<class 'int'>"),
    (Unlike(), "itself"),
]


def test_args_are_kept_as_they_are(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, "host", suffix=suffix) as run:
        for n, (passed, _) in enumerate(ARGS):
            with gputrace.span(f"s{n}", value=passed):
                pass
        with gputrace.span("last"):
            pass
    for n, (passed, meant) in enumerate(ARGS):
        kept = run.named(f"s{n}")[0].args["value"]
        assert kept == meant, passed
        if suffix == ".pftrace":
            assert type(kept) is type(meant), passed
    last_is_there(run)


HARD = [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**5000, math.nan, math.inf, -math.inf, "\ud800", "\0", "a\0b"]


def test_args_that_no_format_has_a_word_for(tmp_path: Path, suffix: str) -> None:
    """They are kept somehow; the slice and all after it are there."""
    with recording(tmp_path, "host", suffix=suffix) as run:
        for n, value in enumerate(HARD):
            with gputrace.span(f"s{n}", value=value, after=1):
                pass
        with gputrace.span("last"):
            pass
    for n, _ in enumerate(HARD):
        (s,) = run.named(f"s{n}")
        assert s.args["after"] == 1
        assert "value" in s.args
    assert math.isnan(float(run.named("s5")[0].args["value"]))
    assert float(run.named("s6")[0].args["value"]) == math.inf
    last_is_there(run)


def test_long_strings_are_cut(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, "host", suffix=suffix) as run:
        with gputrace.span("s", text="x" * 10**7, listed=list(range(10**5)), array=np.zeros((500, 500))):
            pass
        with gputrace.span("last"):
            pass
    args = run.named("s")[0].args
    assert (len(args["text"]), args["text"][-1]) == (4096, "…")
    assert len(args["listed"]) == 200
    assert len(args["array"]) <= 200
    last_is_there(run)


@pytest.mark.parametrize("kind", [Unspeakable, Impostor, Name])
def test_an_arg_that_raises_costs_itself_alone(tmp_path: Path, suffix: str, kind: Any) -> None:
    value = kind()
    with recording(tmp_path, suffix=suffix) as run:
        with gputrace.span("s", run.stream(), before=1, bad=value, after=2):
            pass
        gputrace.instant("i", bad=value, after=2)
        window = gputrace.window("w", bad=value, after=2)
        window.close()
        with gputrace.span("last"):
            pass
    for s in (*run.named("s"), *run.named("i"), *run.named("w")):
        assert s.args["after"] == 2
    assert len(run.named("s")) == 2
    last_is_there(run)


def test_an_arg_whose_str_opens_spans(tmp_path: Path, suffix: str) -> None:
    class Nosy:
        def __str__(self) -> str:
            with gputrace.span("inside str", depth=1):
                return "said"

    class Endless:
        def __str__(self) -> str:
            with gputrace.span("endless", value=self):
                return "never said"

    with recording(tmp_path, "host", suffix=suffix) as run:
        with gputrace.span("s", value=Nosy()):
            pass
        with gputrace.span("e", value=Endless()):
            pass
        with gputrace.span("last"):
            pass
    assert run.named("s")[0].args == {"value": "said"}
    assert len(run.named("inside str")) == len(run.named("e")) == 1
    assert run.report["unfinished"] == run.report["out_of_order"] == 0
    last_is_there(run)


def test_args_with_the_names_of_our_own_parameters(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, "host", suffix=suffix) as run:
        with gputrace.span("s", name=1, self=2, args=3, kind=4, error_=5):
            pass
        window = gputrace.window("w", name=1, self=2)
        window.close()
        gputrace.instant("i", name=1, self=2, stream=3)
    assert run.named("s")[0].args == {"name": 1, "self": 2, "args": 3, "kind": 4, "error_": 5}
    assert run.named("w")[0].args == {"name": 1, "self": 2}
    assert run.named("i")[0].args == {"name": 1, "self": 2, "stream": 3}


def test_strange_names_of_args(tmp_path: Path, suffix: str) -> None:
    strange = {"": 1, "é\n\t": 2, "\ud800": 3, "x" * 5000: 4, 'q"uote': 5, "a\0b": 6}
    with recording(tmp_path, "host", suffix=suffix) as run:
        with gputrace.span("s", **strange, after=7):
            pass
        with gputrace.span("last"):
            pass
    assert run.named("s")[0].args["after"] == 7
    last_is_there(run)


NAMES = [5, None, b"bytes", ("a", 1), [1], {}, 1.5, math.nan, Name("x"), Color.RED, Unspeakable(), Impostor(), object]


def test_names_that_are_no_str(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        for name in NAMES:
            with gputrace.span(name, run.stream()):  # type: ignore[arg-type]
                pass
            gputrace.instant(name)  # type: ignore[arg-type]
            gputrace.window(name).close()  # type: ignore[arg-type]
            gputrace.counter(name, 1)  # type: ignore[arg-type]
            gputrace.counter("c", 1, name)  # type: ignore[arg-type]
            gputrace.span(name)(len)([])  # type: ignore[arg-type]
        with gputrace.span("last"):
            pass
    assert len(run.host) == 4 * len(NAMES) + 1
    assert len(run.device) == len(NAMES)
    assert {"5", "None", "b'bytes'", "[1]", "{}"} <= {s.name for s in run.slices}
    last_is_there(run)


def test_strange_names(tmp_path: Path, suffix: str) -> None:
    names = ["", " ", "a\0b", "\ud800", "🎉", 'q"uote\\', "new\nline", "\x1b[31m", "x" * 100_000, "</script>", "\u2028"]
    with recording(tmp_path, suffix=suffix) as run:
        for name in names:
            with gputrace.span(name, run.stream(name)):
                gputrace.instant(name)
            gputrace.counter(name, 1, name)
        with gputrace.span("last"):
            pass
    assert len(run.device) == len(names)
    assert len(run.host) == 2 * len(names) + 1
    if suffix == ".pftrace":
        found = [s.name for s in run.slices]
    else:  # the engine shows a JSON name as it stands in the file, escapes and all
        found = [event.get("name") for event in json.loads(run.trace) if event["ph"] in "BXi"]
    for name in (" ", "🎉", 'q"uote\\', "new\nline", "</script>", "\u2028"):
        assert found.count(name) == 3, name
    last_is_there(run)


def test_strange_names_of_threads(tmp_path: Path, suffix: str) -> None:
    names = ["", "a\0b", "\ud800", "🎉\n", "x" * 10_000]

    def work() -> None:
        with gputrace.span("s"):
            pass

    with recording(tmp_path, "host", suffix=suffix) as run:
        for name in names:
            thread = threading.Thread(target=work, name=name)
            thread.name = name
            thread.start()
            thread.join()
    assert len(run.named("s")) == len(names)
    assert len({s.track for s in run.slices}) == len(names)


COUNTS: list[tuple[Any, float | None]] = [
    (0, 0), (-5, -5), (2**70, float(2**70)), (1.5, 1.5), (True, 1), (np.float32(2.5), 2.5), (np.int64(4), 4),
    (decimal.Decimal(3), 3), ("3.5", 3.5), ("x", None), (None, None), (object(), None), (Unspeakable(), None),
    (math.inf, math.inf), (10**400, math.inf),
]  # fmt: skip


def test_counter_values(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, "host", suffix=suffix) as run:
        for value, _ in COUNTS:
            gputrace.counter("c", value)
        gputrace.counter("c", math.nan)
        gputrace.counter("c", 42)
    (samples,) = run.counters.values()
    kept = [value for _, value in samples]
    assert kept[:-2] == [meant for _, meant in COUNTS if meant is not None]
    assert math.isnan(kept[-2])
    assert kept[-1] == 42
    told = run.report["told"]
    assert len(told) == 4
    assert all(text.startswith("counter 'c' got a ") and "no number" in text for text in told)


class OnDevice:
    """A tensor whose every reading would wait for the device."""

    is_cuda = True

    def __float__(self) -> float:
        raise AssertionError("read")

    __str__ = __repr__ = __float__  # type: ignore[assignment]


def test_what_lies_on_the_device_is_not_read(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, "host", suffix=suffix) as run:
        gputrace.counter("loss", OnDevice())  # type: ignore[arg-type]
        with gputrace.span("x", loss=OnDevice()):
            pass
    assert run.host[0].args == {"loss": "<OnDevice on the device>"}
    (told,) = run.report["told"]
    assert "pass a number" in told


class WithProtocol:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class WithAttribute:
    def __init__(self, name: str, value: Any) -> None:
        setattr(self, name, value)


def test_every_way_to_name_a_stream(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        stream = run.stream("the one")
        handle = stream.handle
        ways = [
            handle,
            WithProtocol(handle),
            WithAttribute("cuda_stream", handle),
            WithAttribute("ptr", handle),
            WithAttribute("handle", ctypes.c_void_p(handle)),
            stream,
            np.int64(handle),
            ctypes.c_void_p(handle),
        ]
        for n, way in enumerate(ways):
            with gputrace.span(f"w{n}", stream=way):
                pass
            with gputrace.use_stream(way), gputrace.span(f"u{n}"):
                pass
            gputrace.window(f"x{n}", way).close()
            gputrace.failure("nothing is open", way)
    assert len(run.device) == 3 * len(ways)
    assert {s.track[-1].split(" 2")[0] for s in run.device} == {"the one"}
    assert len({s.track_id for s in run.device}) == 1
    assert run.report["failed"] == 0


NO_STREAMS: dict[str, Callable[[], Any]] = {
    "unknown handle": lambda: 12345,
    "negative": lambda: -1,
    "too large": lambda: 2**64,
    "float": lambda: 1.5,
    "bool": lambda: True,
    "str": lambda: "stream",
    "bytes": lambda: b"x",
    "list": list,
    "object": object,
    "unspeakable": Unspeakable,
    "impostor": Impostor,
    "attribute": lambda: WithAttribute("ptr", "x"),
}


@pytest.mark.parametrize("what", NO_STREAMS)
def test_what_is_no_stream_costs_the_window_alone(tmp_path: Path, suffix: str, what: str) -> None:
    stream = NO_STREAMS[what]()
    with recording(tmp_path, suffix=suffix) as run:
        with gputrace.span("s", stream=stream):
            pass
        with gputrace.use_stream(stream), gputrace.span("u"):
            pass
        gputrace.window("w", stream).close()
        gputrace.failure("x", stream)
        gputrace.span("d", stream=stream)(len)([])
    assert run.device == []
    assert [s.name for s in run.host] == ["s", "u", "w", "d"]
    assert len(run.report["told"]) == 1
    assert run.report["told"][0].startswith("no GPU windows on a stream: ")


def test_a_destroyed_stream(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        stream, other = run.stream(), run.stream()
        handle = stream.handle
        with gputrace.span("before", handle):
            pass
        run.gpu.stream_destroy(stream)
        run.gpu.program_streams -= 1
        with gputrace.span("after", handle), gputrace.span("other", other):
            pass
        gone = run.stream()
        run.gpu.stream_destroy(gone)
        run.gpu.program_streams -= 1
        with gputrace.span("never seen", gone.handle):
            pass
    assert len(run.host) == 4
    assert {"before", "other"} <= {s.name for s in run.device}
    assert "never seen" not in {s.name for s in run.device}


def test_a_simulated_stream_where_only_the_host_is_traced(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, "host", suffix=suffix) as run:
        with gputrace.span("s", run.stream()), gputrace.use_stream(run.stream()), gputrace.span("t"):
            pass
        with gputrace.span("zero", 0):
            pass
    assert [s.name for s in run.host] == ["s", "t", "zero"]
    assert run.device == []
    assert run.report["told"] == []


def test_what_fails_may_be_anything(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        stream = run.stream()
        for n, error in enumerate([None, "text", 5, Unspeakable(), KeyError(), RuntimeError("x" * 10_000), Impostor()]):
            with gputrace.span(f"s{n}", stream):
                gputrace.failure(error, stream)
            window = gputrace.window(f"w{n}", stream)
            window.failure(error)
            window.close()
        with gputrace.span("last", stream):
            pass
    failed = [s for s in run.device if s.name != "last"]
    assert len(failed) == 14
    assert all(0 < len(s.args["error"]) <= 200 for s in failed)
    assert "error" not in next(s for s in run.device if s.name == "last").args
    last_is_there(run)


def test_both_formats_say_the_same(tmp_path: Path, suffix: str) -> None:
    """The same calls, in each format, give the same slices (times aside)."""
    if suffix != ".json":
        pytest.skip("compares the two; once is enough")

    def program(run: Run) -> list[Any]:
        stream = run.stream("s")
        with gputrace.span("outer", stream, a=1, b="x", c=True, d=0.5):
            stream.launch(1000)
            with gputrace.span("inner", stream):
                gputrace.instant("now", e=2)
        window = gputrace.window("w", stream)
        window.failure("bad")
        window.close()
        return []

    drawn = []
    for each in EXPORTERS:
        with recording(tmp_path, suffix=each) as run:
            program(run)
        assert run.engine is not None
        drawn.append(sorted((s.name, s.depth, sorted(s.args.items()), s.dur == 0) for s in slices(run.engine)))
    assert drawn[0] == drawn[1]
