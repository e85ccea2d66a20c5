"""What a traced program finds when its first line runs: everything as it was, and its tracer running."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.record.running import ONE_SPAN, PYTHON, left_behind, recording, run


def test_sys_path_is_as_without(tmp_path: Path) -> None:
    program = "import sys; print(sys.path, any('record/site' in entry for entry in sys.path_importer_cache))"
    command = [PYTHON, "-c", program]
    assert run(recording(*command), tmp_path).stdout == run(command, tmp_path).stdout


def test_no_sitecustomize_is_left_where_there_was_none(tmp_path: Path) -> None:
    program = """
import sys
print("sitecustomize" in sys.modules)
try:
    import sitecustomize
except ImportError as error:
    print(error.name)
"""
    command = [PYTHON, "-c", program]
    assert run(recording(*command), tmp_path).stdout == run(command, tmp_path).stdout


def test_the_shadowed_sitecustomize_runs(tmp_path: Path) -> None:
    environment = _with_sitecustomize(tmp_path, "import sys\nprint('mine', __name__, __file__)\nsys.mark = 1\n")
    program = "import sys, sitecustomize; print(sys.mark, sitecustomize.__file__, sitecustomize.sys.mark)\n" + ONE_SPAN
    plain = run([PYTHON, "-c", program], tmp_path, env=environment)
    in_order = environment | {"PYTHONUNBUFFERED": "1"}  # the launcher's own line would come as it ends
    traced = run(recording(PYTHON, "-c", program), tmp_path, env=in_order)

    assert b"mine sitecustomize" in plain.stdout
    # The launcher is a Python too, and meets the same file.
    assert traced.stdout == plain.stdout.splitlines(keepends=True)[0] + plain.stdout
    assert (tmp_path / "trace.pftrace").exists()


def test_a_failing_sitecustomize_fails_as_without(tmp_path: Path) -> None:
    environment = _with_sitecustomize(tmp_path, "raise RuntimeError('mine')\n")
    program = "import sys; print('sitecustomize' in sys.modules)"
    plain = run([PYTHON, "-c", program], tmp_path, env=environment)
    traced = run(recording(PYTHON, "-c", program), tmp_path, env=environment)

    assert b"RuntimeError: mine" in plain.stderr
    assert traced.stderr.count(plain.stderr) == 2  # the launcher's own, and the program's
    assert traced.stdout == plain.stdout


def test_a_recording_in_a_recording_has_its_own_trace(tmp_path: Path) -> None:
    program = "import gputrace\nwith gputrace.span('inner'): pass"
    inner = recording(PYTHON, "-c", program, output="inner.pftrace")
    result = run(recording(*inner, output="outer.pftrace"), tmp_path)
    assert result.returncode == 0
    assert b"inner" in (tmp_path / "inner.pftrace").read_bytes()
    assert left_behind(tmp_path) == []


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    program = "import sys; print(*sys.modules)"
    # Isolated from what this environment's own .pth files import.
    loaded = set(run(recording(PYTHON, "-c", program), tmp_path).stdout.decode().split())
    before = set(run([PYTHON, "-c", program], tmp_path).stdout.decode().split())
    heavy = {"dataclasses", "inspect", "asyncio", "importlib.metadata", "json", "orjson", "click", "rich", "numpy"}
    heavy |= {"google.protobuf", "perfetto", "cuda.bindings", "ctypes", "subprocess", "logging"}
    assert "gputrace" in loaded
    assert (loaded - before) & heavy == set()


def test_what_an_empty_program_does_not_need_is_not_loaded(tmp_path: Path) -> None:
    """Each module of ours costs each Python that starts under a recording a quarter of a millisecond."""
    program = "import sys; print(*(name for name in sys.modules if name.startswith('gputrace')))"
    loaded = set(run(recording(PYTHON, "-c", program), tmp_path).stdout.decode().split())
    of_devices = {"anchoring", "clock", "compileddevice", "devices.cuda", "devicetrace", "events", "puredevice"}
    of_frameworks = {"instrument.codeswap", "instrument.site", "instrument.torch"}
    of_others = {"annotation", "api", "merging", "profiler", "record.join", "record.launch", "reading", "table"}
    assert "gputrace.tracer" in loaded
    assert not {name.removeprefix("gputrace.") for name in loaded} & (of_devices | of_frameworks | of_others)


def test_children_are_traced_too(tmp_path: Path) -> None:
    span = "import gputrace\nwith gputrace.span('{}'): pass\n"
    child = span.format("from the child")
    program = span.format("from the parent")
    program += f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    result = run(recording(PYTHON, "-c", program), tmp_path)
    assert b"2 slices" in result.stderr, result.stderr
    trace = (tmp_path / "trace.pftrace").read_bytes()
    assert b"from the parent" in trace
    assert b"from the child" in trace


def test_tracing_that_cannot_start_leaves_the_program_alone(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "gputrace"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ValueError('broken on purpose')\n")
    # Only once the launcher, which needs gputrace itself, is running.
    program = (
        "import os, sys; ours, *others = os.environ['PYTHONPATH'].split(os.pathsep); "
        "os.environ['PYTHONPATH'] = os.pathsep.join([ours, os.path.abspath('broken'), *others]); "
        "os.execv(sys.executable, [sys.executable, '-c', 'print(1); raise SystemExit(5)'])"
    )
    result = run(recording(PYTHON, "-c", program), tmp_path)
    assert result.returncode == 5
    assert result.stdout == b"1\n"
    assert b"ValueError: broken on purpose" in result.stderr
    assert b"Traceback" not in result.stderr


def test_a_process_that_outlives_its_recording_is_left_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "GPUTRACE_RECORD": str(tmp_path / "gone"), "PYTHONPATH": _site()}
    result = run([PYTHON, "-c", "import sys; print('gputrace' in sys.modules)"], tmp_path, env=environment)
    assert (result.stdout, result.stderr, result.returncode) == (b"False\n", b"", 0)


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs an interpreter without gputrace beside this one")
def test_an_environment_without_gputrace_runs_unharmed(tmp_path: Path) -> None:
    other = os.path.join(sys.base_prefix, "bin", "python3")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = "import sys; print(sys.path)"
    plain = run([other, "-c", program], tmp_path, env=environment)
    traced = run(recording(other, "-c", program), tmp_path, env=environment)
    assert traced.stdout == plain.stdout
    assert traced.returncode == 0


def _with_sitecustomize(folder: Path, text: str) -> dict[str, str]:
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text(text)
    path = os.pathsep.join([str(folder / "own"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def _site() -> str:
    from gputrace.record.environment import SITE

    return SITE
