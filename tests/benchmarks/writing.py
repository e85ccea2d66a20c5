"""What writing costs: by the exporters alone, and by the collector from the program's spans to the file.

An event is one end of a slice. An exporter's figures are CPU time of one thread, the best of rounds in which all of
them and Perfetto's own package take turns, so that a busy machine slows them alike; files are in memory. The
collector's is all CPU time but the opening thread's while it opens spans.
"""

from __future__ import annotations

import io
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from gputrace.exporters.chrome import Chrome
from gputrace.exporters.perfetto import Perfetto

from gputrace.model import BEGIN, END, SLICE, THREAD, Exporter, Process, Recording, Track
from tests.benchmarks.figures import Row, by_twin, in_child, print_rows, rows_of

EVENTS = 60_000
BATCH = 500  # edges in one write, as the collector hands them over
ROUNDS = 5
NAMES = 50
START_NS = 10**15
RECORDING = Recording("6b1f0c4de9a24d38b5e7712c9f03a8d4", START_NS, 10**12)

Edges = list[Any]


#: Spans opened between two calls of the collector: below what may be in flight.
OPENED = 20_000
SETTLE_S = 0.5  # GPU edges wait for the next anchor


def measure(quick: bool = False) -> list[Row]:
    return rows_of(in_child("writing", "3" if quick else str(ROUNDS)))


def run(rounds: int) -> list[Row]:
    from tests.benchmarks.program import check, open_gpu, spans

    stream = int(check(open_gpu().cuStreamCreate(1)))
    found = exported(rounds=rounds)
    host = collected(spans(OPENED), 2, rounds) / 1e6
    on_gpu = collected(spans(OPENED, stream), 4, rounds) / 1e6
    return [
        Row("events of host spans, collected and written", host, by_twin(None, 20), "M/s", True),
        Row("events of host+GPU spans, read, placed and written", on_gpu, unit="M/s"),
        Row("events, by an exporter alone", found["perfetto_nested_per_s"] / 1e6, 1.5, "M/s", True),
        Row("the same with flows", found["perfetto_flows_per_s"] / 1e6, 1.5, "M/s", True),
        Row("an exporter, over the perfetto package's builder", found["times_the_package"]),
        Row("bytes an event", found["perfetto_bytes"], 15, "B"),
        Row("bytes an event with a flow on each slice", found["perfetto_flows_bytes"], 22, "B"),
    ]


def collected(opening: Callable[[], None], events: int, seconds: float) -> float:
    """Events a second of CPU time; ``opening`` opens OPENED spans of ``events`` each. It needs the fake driver."""
    from gputrace import tracer
    from tests.benchmarks.program import recorded

    with recorded() as running:
        current = tracer.current()
        assert current is not None

        def measured(seconds: float) -> float:
            opening_s, spans = 0.0, 0
            start, over = time.process_time(), time.monotonic() + seconds
            while time.monotonic() < over:
                before = time.thread_time()
                opening()
                opening_s += time.thread_time() - before
                spans += OPENED
                current.cycle()
            time.sleep(SETTLE_S)
            return spans * events / (time.process_time() - start - opening_s)

        measured(0.1)  # the pools fill
        pace = measured(seconds)
    assert running.summary is not None
    assert not running.summary.dropped
    return pace


def exported(events: int = EVENTS, rounds: int = ROUNDS) -> dict[str, float]:
    """Events a second, bytes an event, and how many times the package's pace.

    ``*_per_s`` are events a second of CPU time: ``nested`` slices come as begin and end, ``leaf`` ones in one piece;
    ``flows`` have a flow id on each slice, ``args`` three args. ``cut_per_s`` is `whole` over the same file.
    """
    nested = edges(events)
    with_flows = edges(events, flows=True)
    work: dict[str, Callable[[], bytes]] = {
        "perfetto_nested": lambda: write(Perfetto, nested),
        "perfetto_flows": lambda: write(Perfetto, with_flows),
        "perfetto_leaf": lambda: write(Perfetto, leaves),
        "perfetto_args": lambda: write(Perfetto, with_args),
        "chrome_nested": lambda: write(Chrome, nested),
        "chrome_flows": lambda: write(Chrome, with_flows),
        "package": lambda: write_with_package(few),
    }
    leaves = edges(events, leaf=True)
    with_args = [(*e[:3], {"step": i, "shape": "4x4", "lr": 0.1}, *e[4:]) for i, e in enumerate(leaves)]
    few = nested[: events // 10]  # the package is slow, and its pace is even
    best = dict.fromkeys(work, float("inf"))
    written: dict[str, bytes] = {}
    for _ in range(rounds):
        for name, job in work.items():
            started = time.process_time()
            written[name] = job()
            best[name] = min(best[name], time.process_time() - started)
    pace = {name: (len(few) if name == "package" else events) / seconds for name, seconds in best.items()}
    shard = io.BytesIO(written["perfetto_nested"])
    started = time.process_time()
    Perfetto.whole(shard)
    cut = time.process_time() - started
    return {
        **{f"{name}_per_s": value for name, value in pace.items()},
        "perfetto_cut_per_s": events / cut,
        "perfetto_bytes": len(written["perfetto_nested"]) / events,
        "perfetto_flows_bytes": len(written["perfetto_flows"]) / events,
        "chrome_bytes": len(written["chrome_nested"]) / events,
        "chrome_flows_bytes": len(written["chrome_flows"]) / events,
        "package_bytes": len(written["package"]) / len(few),
        "times_the_package": pace["perfetto_nested"] / pace["package"],
    }


def edges(events: int, *, flows: bool = False, leaf: bool = False) -> Edges:
    """Slices side by side, some 10 us long and as far apart, of a few names."""
    chance = random.Random(1)
    now = START_NS
    found: Edges = []
    for i in range(events // 2):
        begin = now + int(chance.expovariate(1 / 10_000))
        now = begin + int(chance.expovariate(1 / 10_000))
        name, flow = f"kernel {chance.randrange(NAMES)}", i + 1 if flows else 0
        if leaf:
            found.append((begin, SLICE, name, None, flow, now))
        else:
            found += [(begin, BEGIN, name, None, flow, 0), (now, END, None, None, 0, 0)]
    return found


def write(exporter: type[Exporter], edges: Edges) -> bytes:
    file = io.BytesIO()
    writer = exporter(file, RECORDING, Process(0, 4242, "train.py", [], START_NS, lambda: 1))
    track = Track(1, THREAD, "MainThread", tid=4242)
    writer.open_track(track)
    for start in range(0, len(edges), BATCH):
        writer.write(track, edges[start : start + BATCH])
    return file.getvalue()


def write_with_package(edges: Edges) -> bytes:
    """The same slices by the package's streaming builder: interned names and an incremental clock, as ours."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    file = io.BytesIO()
    builder = StreamingTraceProtoBuilder(file)
    packet = builder.create_packet()
    packet.trusted_packet_sequence_id = 1
    packet.sequence_flags = 3
    packet.trace_packet_defaults.timestamp_clock_id = 64
    packet.trace_packet_defaults.track_event_defaults.track_uuid = 77
    packet.clock_snapshot.clocks.add(clock_id=64, timestamp=0, is_incremental=True)
    packet.clock_snapshot.clocks.add(clock_id=6, timestamp=START_NS)
    builder.write_packet(packet)
    names: dict[str, int] = {}
    last = START_NS
    for ts, kind, name, _, _, _ in edges:
        packet = builder.create_packet()
        packet.trusted_packet_sequence_id = 1
        packet.sequence_flags = 2
        packet.timestamp = ts - last
        last = ts
        event = packet.track_event
        event.type = pb.TrackEvent.TYPE_SLICE_BEGIN if kind == BEGIN else pb.TrackEvent.TYPE_SLICE_END
        if kind == BEGIN:
            if name not in names:
                names[name] = len(names) + 1
                packet.interned_data.event_names.add(iid=names[name], name=name)
            event.name_iid = names[name]
        builder.write_packet(packet)
    return file.getvalue()


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1])))
