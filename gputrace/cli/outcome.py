"""What `record` and `merge` say at the end, and what they show meanwhile."""

from __future__ import annotations

import contextlib
import os
import sys

from gputrace.cli.say import say
from gputrace.remote import is_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gputrace.merging.writing import Outcome
    from gputrace.record.join import Progress
    from gputrace.record.tally import Drawn, Summary

# Below this a join takes a fraction of a second, in bytes.
_LONG_JOIN = 32_000_000

# Edges are moved by a rounding now and then. Beyond this share of the slices, something else is the matter.
_MANY_MOVED = 0.1

_ABRUPTLY = "ended without cleaning up (killed, os._exit or exec)"
# Such an end is a fault as often as not; where somebody reads of it that has a pool, it is none.
_ABRUPTLY_AS_USUAL = _ABRUPTLY.replace("exec)", "exec; a multiprocessing.Pool ends its workers so)")

# Formats that Perfetto's UI opens; of another's nothing is known.
_OPENS_IN_UI = (".pftrace", ".json", ".pftrace.gz", ".json.gz")


def tell(summary: Summary, quiet: bool) -> None:
    """Say what became of a recording that was written: a line for each thing that went wrong, then one for the file."""
    for line in (*summary.told, *_bent(summary)):
        say(line)
    if quiet:
        return
    least = "at least " if summary.is_lower_bound else ""
    facts = [_size(summary.size), least + _many(summary.slices, "slice"), _many(summary.windows, "GPU window")]
    unknown = summary.unread or summary.stopped or summary.unreported
    if summary.cut_short + summary.silent <= summary.drops_known and not unknown:
        facts.append(f"{summary.dropped:,} dropped")
    elif summary.dropped:  # what a process dropped, only itself can say: killed, it said so up to a moment before
        facts.append(f"at least {summary.dropped:,} dropped")
    if summary.failed:
        facts.append(f"{_many(summary.failed, 'window')} failed or could not be read")
    if summary.capture_skipped:
        facts.append(f"{summary.capture_skipped:,} left out during graph capture")
    if summary.short_calls:
        facts.append(f"{_many(summary.short_calls, 'shorter call')} left out")
    if summary.unfinished:
        facts.append(f"{_many(summary.unfinished, 'slice')} still open")
    if summary.windows:
        facts.append(_placed(summary))
    cut = "".join(f"; {each}" for each in (_cut_short(summary), _silent(summary)) if each)
    opening = _opening(summary.path)
    say(f"wrote {_short(summary.path)}: {', '.join(facts)}{cut}{opening}")


def _placed(summary: Summary) -> str:
    """How far off windows may be: of those that a process did not come to say it of, nobody knows."""
    bounded = summary.windows - summary.unbounded
    if bounded <= 0:
        return "how well they are placed is not known"
    placed = f"placed to within {_duration(summary.worst_uncertainty_ns)}"
    return f"{placed}, but for {summary.unbounded:,} of which it is not known" if summary.unbounded else placed


def tell_dumped(path: str, slices: int) -> None:
    """Say that the last seconds were written while the command goes on."""
    say(f"wrote {_short(path)}: {_many(slices, 'slice')} of the last seconds")


def _cut_short(summary: Summary) -> str:
    """What became of processes that came to no clean end, as those of a terminated pool never do."""
    if not summary.cut_short:
        return ""
    its = "its" if summary.cut_short == 1 else "their"
    if summary.kept < summary.cut_short:
        missing = f"slices of {its} last moments may be missing"
    elif summary.cut_short_windows:
        missing = f"all {its} recorded host slices are there, {its} last GPU windows may be missing"
    elif summary.device not in ("", "host"):
        they = "it" if summary.cut_short == 1 else "they"
        missing = f"all {its} recorded host slices are there, GPU windows, if {they} had any, are missing"
    else:
        missing = f"all {its} recorded host slices are there"
    return f"{_many(summary.cut_short, 'process', 'processes')} {_ABRUPTLY_AS_USUAL}: {missing}"


def _silent(summary: Summary) -> str:
    """Of processes that recorded something, and nothing of it is there."""
    if not summary.silent:
        return ""
    its = "its" if summary.silent == 1 else "their"
    ended = f"{_ABRUPTLY} within moments of {its} first span: none of {its} slices is there"
    return f"{_many(summary.silent, 'process', 'processes')} {ended}"


def _bent(summary: Summary) -> Iterator[str]:
    """A line for each way in which the trace shows something other than what happened."""
    if count := summary.out_of_order:
        were, them = ("was", "it") if count == 1 else ("were", "them")
        yield f"{_many(count, 'slice')} {were} cut short because a span around {them} was closed first"
    if count := summary.no_room:
        yield (
            f"{_many(count, 'span')} came faster than they could be written and found no room: --max-size (or "
            "trace(max_size=)) lets a process keep more, 32MB if not given"
        )
    if count := summary.clock_violations:
        are, their = ("is", "its") if count == 1 else ("are", "their")
        yield f"{_many(count, 'window')} {are} drawn before {their} own enqueue; {their} clock cannot be trusted"
    if summary.clamped > _MANY_MOVED * summary.slices:
        yield (
            f"{_many(summary.clamped, 'begin or end', 'begins and ends')} of {_many(summary.slices, 'slice')} reached "
            "their rows out of order and are drawn later than they were"
        )


def recount(parts: Iterable[tuple[str, int]], suffix: str) -> Drawn | None:
    """What files of a killed process draw: see `gputrace.reading.drawn`, which takes a while to import."""
    from gputrace.reading.drawn import drawn

    return drawn(parts, suffix)


def tell_empty(summary: Summary, old: str) -> None:
    """Say why nothing was written. ``old`` is the file that stands where it would have been, "" if there is none."""
    from gputrace.record.advice import why_empty

    for line in summary.told:
        say(line)
    say(why_empty(summary) + (f" ({_short(old)} is from an earlier recording)" if old else ""))


def tell_merged(outcome: Outcome) -> None:
    """Say what a merge came to: a line for each thing that went wrong or is worth knowing, then one for the file."""
    for line in (*outcome.problems, *outcome.notes):
        say(line)
    if not outcome.path:
        say("nothing was merged: none of what was given is a trace that can be placed in time")
        return
    hosts = f" of {_many(outcome.hosts, 'host')}" if outcome.hosts > 1 else ""
    opening = _opening(outcome.path)
    say(f"wrote {_short(outcome.path)}: {_size(outcome.size)}, {_many(len(outcome.merged), 'trace')}{hosts}{opening}")


def tell_converted(outcome: Outcome) -> None:
    """Say what a conversion came to: a line for each thing that is not as it was, then one for the file, if any."""
    for line in (*outcome.problems, *outcome.notes):
        say(line)
    if not outcome.path:
        return
    opening = _opening(outcome.path)
    say(f"wrote {_short(outcome.path)}: {_size(outcome.size)}{opening}")


@contextlib.contextmanager
def progress_bar(interrupted: Callable[[], bool], what: str = "joining") -> Iterator[Progress | None]:
    """A progress bar, of bytes, shown only if it is long and someone is watching.

    ``interrupted`` is asked, once the bar is there, whether to give up: Ctrl-C raises KeyboardInterrupt then.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    with contextlib.ExitStack() as stack:
        show: Progress | None = None

        def progress(done: int, total: int) -> None:
            nonlocal show
            if total < _LONG_JOIN:
                return
            if show is None:
                interrupted()  # what arrived before the bar was meant for the command
                show = stack.enter_context(_rich_bar(total, what))
            elif interrupted():
                raise KeyboardInterrupt
            show(done, total)

        yield progress


@contextlib.contextmanager
def _rich_bar(total: int, what: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"gputrace: {what}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, _: bar.update(task, completed=done)


def _opening(path: str) -> str:
    opens = path.lower().endswith(_OPENS_IN_UI) and not is_url(path)
    return "; open it in https://ui.perfetto.dev" if opens else ""


def _short(path: str) -> str:
    """As a person would type it: relative where that is not longer."""
    if is_url(path):
        return path
    try:
        relative = os.path.relpath(path)
    except OSError:  # the current directory was removed
        return path
    return relative if len(relative) < len(path) else path


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def _size(size: int) -> str:
    for unit, scale in [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)]:
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def _duration(duration_ns: int) -> str:
    for unit, scale in [("s", 1e9), ("ms", 1e6), ("µs", 1e3)]:
        if duration_ns >= scale:
            return f"{duration_ns / scale:.1f} {unit}"
    return f"{duration_ns} ns"
