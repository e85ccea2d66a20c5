"""Figures of a trace by SQL on the real engine: what a summary has to say, worked out another way."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.engine import Engine, track_paths

#: Two streams, nested windows, a thread of its own rows, tasks, waits; one window fails and one is abandoned.
PROGRAM = """
import asyncio, os, threading, time
import gputrace
from gputrace.devices.simulated import default_gpu

gpu = default_gpu()
main, copy = gpu.stream("main"), gpu.stream("copy")

def step(number):
    with gputrace.span("step", number=number):
        with gputrace.span("forward", stream=main):
            for layer in range(3):
                with gputrace.span(f"layer {layer}", stream=main, layer=layer):
                    main.launch(60_000 + 20_000 * layer + 1_000 * number)
        with gputrace.span("copy", stream=copy):
            copy.launch(150_000)
        if number % 4 == 3:
            with gputrace.span("cudaStreamSynchronize"):
                main.synchronize()

async def task(number):
    with gputrace.span("fetch", number=number):
        await asyncio.sleep(0.001)

async def tasks():
    await asyncio.gather(*(task(number) for number in range(4)))

for number in range(24):
    step(number)
thread = threading.Thread(target=lambda: [step(number) for number in range(6)], name="other")
thread.start()
thread.join()
asyncio.run(tasks())
gputrace.window("lost", stream=main).abandon()
with gputrace.span("failing", stream=main):
    main.launch(10_000)
    gputrace.failure(RuntimeError("no"), main)
main.synchronize()
copy.synchronize()
"""

_ROWS = """
with place(track_id, label) as (values {places}),
s as (
  select slice.id, name, ts, dur, label, parent_id, cast(label glob '*GPU *' as int) gpu
  from slice join place using (track_id) where dur != 0
)
"""
#: Ids of 2^31 and up.
_MADE_UP = re.compile(r" (21[4-9]|2[2-9]\d|[34]\d\d)\d{7}$")


def labels(engine: Engine) -> dict[int, str]:
    """By track; Chrome's format has each lane of a row as a thread of its own, whose id is made up."""
    return {id: _MADE_UP.sub("", "/".join(map(str, path))) for id, path in track_paths(engine).items()}


def rows(engine: Engine) -> str:
    """The beginning of a query: ``s`` has the slices, each with the label of its row, and whether that is a GPU's.

    To the engine an instant is a slice without a length, so those are left out; the programs here draw no others.
    """
    places = ", ".join(f"({id}, '{label}')" for id, label in labels(engine).items())
    return _ROWS.format(places=places)


def spans(engine: Engine) -> list[tuple[Any, ...]]:
    """(name, is on a GPU, count, unfinished, total, self, min, max, mean, median, p95, p99) of each name on a row."""
    found = engine.query(
        rows(engine)
        + """,
own as (
  select s.*, dur - coalesce((select sum(dur) from slice c where c.parent_id = s.id and c.dur > 0), 0) own from s
),
ranked as (
  select *, row_number() over (partition by label, name order by dur) - 1 r, count() over (partition by label, name) n
  from own where dur > 0
),
placed as (
  select *, 0.5 * (n - 1) a, 0.95 * (n - 1) b, 0.99 * (n - 1) c from ranked
)
select name, label, gpu, n, sum(dur) total, sum(own) own, min(dur) least, max(dur) most, avg(dur) mean,
  max(case r when cast(a as int) then dur end) a0, max(case r when min(cast(a as int) + 1, n - 1) then dur end) a1,
  max(case r when cast(b as int) then dur end) b0, max(case r when min(cast(b as int) + 1, n - 1) then dur end) b1,
  max(case r when cast(c as int) then dur end) c0, max(case r when min(cast(c as int) + 1, n - 1) then dur end) c1,
  max(a - cast(a as int)) fa, max(b - cast(b as int)) fb, max(c - cast(c as int)) fc
from placed group by label, name
"""
    )
    open_ones = {
        (row["label"], row["name"]): row["n"]
        for row in engine.query(rows(engine) + "select label, name, count() n from s where dur = -1 group by 1, 2")
    }
    return sorted(
        (
            row["name"],
            bool(row["gpu"]),
            row["n"],
            open_ones.get((row["label"], row["name"]), 0),
            *(row[key] for key in ("total", "own", "least", "most")),
            *(
                round(value, 3)
                for value in (
                    row["mean"],
                    row["a0"] + (row["a1"] - row["a0"]) * row["fa"],
                    row["b0"] + (row["b1"] - row["b0"]) * row["fb"],
                    row["c0"] + (row["c1"] - row["c0"]) * row["fc"],
                )
            ),
        )
        for row in found
    )


def uses(engine: Engine, by: str) -> list[tuple[int, ...]]:
    """(busy, from the first begin to the last end, windows, unfinished) of each row of GPUs, or of all of them: ``by``
    is "label" or "gpu".
    """
    found = engine.query(
        rows(engine)
        + f""",
w as (
  select *, max(ts + dur) over (
    partition by {by} order by ts rows between unbounded preceding and 1 preceding
  ) reach from s where gpu and dur > 0
)
select sum(case when reach is null or reach <= ts then dur when reach < ts + dur then ts + dur - reach else 0 end) busy,
  max(ts + dur) - min(ts) lasts, count() n,
  (select count() from s o where o.gpu and o.dur = -1 and o.{by} = w.{by}) open
from w group by {by}
"""
    )
    return sorted((row["busy"], row["lasts"], row["n"], row["open"]) for row in found)


def gaps(engine: Engine) -> list[tuple[int, int]]:
    """(from when, how long) no GPU ran anything, the longest first."""
    found = engine.query(
        rows(engine)
        + """,
w as (
  select *, max(ts + dur) over (order by ts rows between unbounded preceding and 1 preceding) reach
  from s where gpu and dur > 0
)
select reach, ts - reach length from w where ts > reach order by length desc, reach
"""
    )
    return [(row["reach"], row["length"]) for row in found]


def doing(engine: Engine, begin: int, end: int) -> list[tuple[str, int]]:
    """(name, time in it and in none inside it) between two times on the host, of each name on a row, the most first."""
    found = engine.query(
        rows(engine)
        + f""",
o as (
  select *, min(ts + dur, {end}) - max(ts, {begin}) inside
  from s where not gpu and dur > 0 and ts < {end} and ts + dur > {begin}
)
select name, sum(inside - coalesce((select sum(c.inside) from o c where c.parent_id = o.id), 0)) ns
from o group by name, label having ns > 0 order by ns desc
"""
    )
    return [(row["name"], row["ns"]) for row in found]


def delays(engine: Engine) -> list[tuple[int, ...]]:
    """(windows with an arrow, least, most, drawn before their launch) of each row of GPUs."""
    found = engine.query(
        rows(engine)
        + """
select w.label, count() n, min(w.ts - h.ts) least, max(w.ts - h.ts) most, sum(w.ts < h.ts) before
from flow join s h on h.id = slice_out join s w on w.id = slice_in where w.gpu and not h.gpu group by w.label
"""
    )
    return sorted((row["n"], row["least"], row["most"], row["before"]) for row in found)


def waited(engine: Engine, pattern: str) -> list[tuple[int, int]]:
    """(calls, time in any) of each row of the host, of slices whose name is like ``pattern``."""
    found = engine.query(
        rows(engine)
        + f""",
w as (
  select *, max(ts + dur) over (
    partition by label order by ts rows between unbounded preceding and 1 preceding
  ) reach from s where not gpu and dur > 0 and name glob '{pattern}'
)
select count() n,
  sum(case when reach is null or reach <= ts then dur when reach < ts + dur then ts + dur - reach else 0 end) total
from w group by label
"""
    )
    return sorted((row["n"], row["total"]) for row in found)


def steps(engine: Engine) -> list[tuple[int, ...]]:
    """(begin, duration, windows launched in it, the time that any of them ran) of each step, by begin."""
    found = engine.query(
        rows(engine)
        + """,
launched as (
  select p.id, w.ts, w.dur, max(w.ts + w.dur) over (
    partition by p.id order by w.ts rows between unbounded preceding and 1 preceding
  ) reach
  from s p join s h on h.label = p.label and h.ts >= p.ts and h.ts < p.ts + p.dur
  join flow on h.id = slice_out join s w on w.id = slice_in
  where p.name = 'step' and not p.gpu
),
busy as (
  select id, count() n,
    sum(case when reach is null or reach <= ts then dur when reach < ts + dur then ts + dur - reach else 0 end) total
  from launched group by id
)
select s.ts, s.dur, coalesce(n, 0) n, coalesce(total, 0) total from s left join busy using (id)
where name = 'step' and not gpu order by s.ts
"""
    )
    return [(row["ts"], row["dur"], row["n"], row["total"]) for row in found]


def viztracer(folder: Path) -> Path:
    """A trace of Python calls, by viztracer."""
    program = folder / "called.py"
    program.write_text(
        "import threading\n"
        "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
        "def other():\n    return [fib(k) for k in range(9)]\n"
        "thread = threading.Thread(target=other)\nthread.start()\nthread.join()\nother()\n"
    )
    output = folder / "called.json"
    command = [sys.executable, "-m", "viztracer", "--quiet", "-o", str(output), str(program)]
    subprocess.run(command, check=True, capture_output=True, cwd=folder, timeout=60)
    return output
