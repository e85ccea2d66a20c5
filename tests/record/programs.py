"""Made-up programs for `tests.ringwriter.Core`: lists of steps that hypothesis draws, and that any kill may cut."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gputrace.model import Exporter, Recording
from gputrace.shards import ShardFolder
from tests.ringwriter import EXPLICIT, PID, PIECE, Core, Killed, Shard

BASE = 7_000_000_000_123
RECORDING = Recording("5f3a9c0d2b7e4816a1d8c36e90f74b52", BASE, 31_000_000_456)
THREADS = (("MainThread", PID), ("worker", PID + 1), ("ended", PID + 2))

_texts = st.sampled_from(["step", "forward", "größe", "a b"])
_plain_args = st.dictionaries(
    st.sampled_from(["n", "text", "ok"]),
    st.one_of(st.booleans(), st.integers(-(1 << 62), 1 << 62), st.sampled_from([0.5, -2.25]), _texts),
    max_size=2,
)
_wild_args = st.dictionaries(
    st.text(max_size=3), st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5)), max_size=3
)


def programs(*, wild: bool) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """``wild``: names and args that formats say in their own ways."""
    names = st.text(max_size=5) if wild else _texts
    args = _wild_args if wild else _plain_args
    thread, wait, intern = st.integers(0, 2), st.integers(1, 5000), st.booleans()
    scope = st.sampled_from([0, 0, 0, 111, 222, EXPLICIT])
    step = st.one_of(
        st.tuples(st.just("begin"), wait, thread, names, scope, args, st.booleans(), intern),
        st.tuples(st.just("end"), wait, thread, st.integers(0, 99), st.integers(0, 3), intern),
        st.tuples(st.just("end"), wait, thread, st.integers(0, 99), st.integers(0, 3), intern),
        st.tuples(st.just("instant"), wait, thread, names, args, intern),
        st.tuples(st.just("sample"), wait, thread, st.sampled_from(["loss", "bytes"]), st.sampled_from([-3, 7, 0.5])),
        st.tuples(st.just("commit")),
    )
    return st.lists(step, max_size=40)


def run(core: Core, program: list[tuple[Any, ...]]) -> None:
    """Do the steps, until it is killed, and leave the files."""
    with contextlib.suppress(Killed):
        _run(core, program)
    core.die()


def _run(core: Core, program: list[tuple[Any, ...]]) -> None:
    threads: dict[int, int] = {}
    ns = BASE
    open_spans: list[tuple[int, int, int]] = []  # (number, thread, scope)
    for what, *step in program:
        if what == "commit":
            core.commit()
            continue
        wait, who, *rest = step
        ns += wait
        if who not in threads:
            threads[who] = core.thread(*THREADS[who])
        thread = threads[who]
        if what == "begin":
            name, scope, args, stream, intern = rest
            number = core.begin(thread, ns, name, scope, args, stream=stream, intern=intern)
            open_spans.append((number, thread, scope))
        elif what == "end":
            which, how, intern = rest
            # A task closes its own innermost span; plain code and windows are closed in any order, by any thread.
            may = [s for i, s in enumerate(open_spans) if s[2] in (0, EXPLICIT) or _is_last(open_spans, i)]
            if may:
                chosen = may[which % len(may)]
                open_spans.remove(chosen)
                core.end(thread, ns, chosen[0], ({}, {"error": "ValueError"}, {"ended": "abandoned"}, {})[how], intern)
        elif what == "instant":
            core.instant(thread, ns, *rest)
        else:
            core.sample(thread, ns, *rest, "ns")


def _is_last(open_spans: list[tuple[int, int, int]], index: int) -> bool:
    return open_spans[index][1:] not in [span[1:] for span in open_spans[index + 1 :]]


def start(path: Path, exporter: type[Exporter], suffix: str = ".rows", **options: Any) -> Core:
    """A new recording in a folder of its own under ``path``, and its one process."""
    path /= f"shards{len(list(path.iterdir()))}"
    path.mkdir()
    name = f"{exporter.__module__}:{exporter.__qualname__}"
    return Core(ShardFolder.create(str(path), RECORDING, suffix, name, "host"), exporter, **options)


def killed(
    path: Path, exporter: type[Exporter], program: list[tuple[Any, ...]], share: float, *, full: bool, suffix: str = ""
) -> Core:
    """A process killed after a share of its stores. ``full``: its threads' first pieces are nearly full."""
    first = PIECE - 256 if full else 64
    dry = start(path, exporter, suffix or ".rows", first=first)
    run(dry, program)
    kill_at = None if share >= 1 else int(dry.ring.steps * share)
    core = start(path, exporter, suffix or ".rows")
    core.ring.first, core.ring.kill_at = first, kill_at
    run(core, program)
    return core


def uncut(path: Path, exporter: type[Exporter], core: Core) -> bytes:
    """The shard of a process that did the same and was not killed."""
    twin = start(path, exporter, core.folder.suffix)
    shard = Shard(twin.file, exporter, core.folder, core.number)
    shard.add(core.edges, core.threads)
    return twin.file.getvalue()[twin.written :]
