"""The examples do what they say. Each is run as a user runs it, and its trace read with Perfetto's own engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.engine import Engine, Slice, assert_clean, counters, slices
from tests.fake_driver import environment, require
from tests.record.running import PYTHON, recording, run, start
from tests.recorded import assert_nested, enclosing, is_gpu

TRAIN = str(Path(__file__).parent.parent / "examples" / "train.py")
STEPS, EPOCHS = 400, 10
KERNELS = ["x @ w1", "tanh", "h @ w2", "loss", "grad w2", "grad h", "grad tanh", "grad w1", "sgd", "sgd"]


def losses(stdout: bytes) -> list[float]:
    return [float(loss) for loss in re.findall(rb"epoch \d+: ([\d.]+)", stdout)]


def test_it_learns_without_a_tracer(tmp_path: Path) -> None:
    done = run([PYTHON, TRAIN], tmp_path)
    assert done.returncode == 0, done.stderr
    found = losses(done.stdout)
    assert len(found) == EPOCHS
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.02 < 0.25  # what is left, and what was there


@pytest.fixture(scope="module", params=[".pftrace", ".json"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("trained")
    name = f"trace{request.param}"
    done = run(recording(PYTHON, TRAIN, output=name, device="simulated"), folder)
    assert done.returncode == 0, done.stderr
    assert b" 0 dropped" in done.stderr
    engine = Engine(folder / name)
    assert_clean(engine)
    return engine


def test_its_rows(trained: Engine) -> None:
    found = slices(trained)
    assert_nested(found)
    host = Counter(s.name for s in found if not is_gpu(s))
    compute = Counter(s.name for s in found if s.track[-1].startswith("compute"))
    copy = Counter(s.name for s in found if s.track[-1].startswith("copy"))
    spans = dict.fromkeys(["step", "forward", "backward", "optimizer"], STEPS)
    kernels = {name: STEPS * count for name, count in Counter(KERNELS).items()}
    assert compute == {**spans, **kernels}
    assert copy == {"batch": STEPS + 1, "loss": STEPS}
    assert host == compute + copy + Counter({"epoch": EPOCHS, "epoch done": EPOCHS, "wait": STEPS})
    assert {s.track[-2].partition(" ·")[0] for s in found if is_gpu(s)} == {"GPU 0"}
    instants = [s for s in found if s.name == "epoch done"]
    assert [s.args["number"] for s in instants] == list(range(EPOCHS))


def test_its_nesting(trained: Engine) -> None:
    found = slices(trained)
    compute = [s for s in found if s.track[-1].startswith("compute")]
    parents = {"forward": "step", "backward": "step", "optimizer": "step", "sgd": "optimizer", "grad w1": "backward"}
    for s in compute[: 20 * 14]:
        if s.name in parents:
            parent = enclosing(compute, s)
            assert parent is not None
            assert parent.name == parents[s.name]


def uncertainty_ns(trained: Engine) -> float:
    """By how much the trace says that an edge of a window may be off, at most."""
    return max(
        value for path, samples in counters(trained).items() if "uncertainty" in path[-1] for _, value in samples
    )


def test_its_arrows(trained: Engine) -> None:
    found = slices(trained)
    source_of = {target: s for s in found for target in s.flows_to}
    assert len(source_of) == sum(len(s.flows_to) for s in found)  # one arrow each
    # A window may be drawn before its own launch, by less than the trace says that it may be off by.
    off_by = uncertainty_ns(trained)
    twins: dict[str, list[Slice]] = defaultdict(list)  # host and device alike are in the order of the launches
    for s in found:
        if not is_gpu(s):
            twins[f"{s.name} {s.args.get('bytes')}"].append(s)
    seen: Counter[str] = Counter()
    for window in filter(is_gpu, found):
        key = f"{window.name} {window.args.get('bytes')}"
        source = twins[key][seen[key]]
        seen[key] += 1
        assert source.ts <= window.ts + off_by
        assert source.args.items() <= window.args.items()  # a window may say besides how it was placed
        if window.id in source_of or source.ts <= window.ts:  # Chrome's format has no arrow back in time
            assert source_of[window.id] is source


def test_its_kernels_take_what_their_flops_take(trained: Engine) -> None:
    # The simulated GPU's clock runs 20 ppm fast; a placed end is as good as the trace's own uncertainty.
    off_ns = 2 * uncertainty_ns(trained)
    for s in slices(trained):
        if is_gpu(s) and "mflop" in s.args:
            assert s.dur >= 5_000 + s.args["mflop"] * 1e6 / 10e9 * 1e9 - off_ns, s


def test_the_streams_overlap_and_wait_for_each_other(trained: Engine) -> None:
    found = slices(trained)
    batches = [s for s in found if s.name == "batch" and is_gpu(s)]
    forwards = [s for s in found if s.name == "forward" and is_gpu(s)]
    overlapping = 0
    for batch, forward, before in zip(batches[1:], forwards[1:], forwards, strict=False):
        assert batch.ts + batch.dur <= forward.ts + 1_000 + forward.dur  # worked on once it is there
        overlapping += batch.ts < before.ts + before.dur
    assert overlapping > STEPS / 2  # copied while the one before is worked on


def test_its_counters(trained: Engine) -> None:
    # In Chrome's format a counter's value has a name too, which the engine puts behind the counter's.
    found = {
        path[-1].removesuffix(" value").removesuffix(" ns").removesuffix(" ppm"): [value for _, value in samples]
        for path, samples in counters(trained).items()
    }
    loss = found["loss"]
    assert len(loss) == STEPS
    assert loss[0] > 0.5 > 0.05 > loss[-1]
    assert len(found["steps a second"]) == STEPS
    assert min(found["clock uncertainty"]) > 0
    assert all(abs(ppm - 20) < 200 for ppm in found["clock skew"])


@pytest.mark.parametrize("device", ["host", "auto", "cuda"])
def test_on_other_devices_it_trains_and_its_host_is_traced(tmp_path: Path, device: str) -> None:
    env = None
    if device == "cuda":
        require()
        env = environment()
    done = run(recording(PYTHON, TRAIN, device=device), tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout)[-1] < 0.02
    found = slices(Engine(tmp_path / "trace.pftrace"))
    assert Counter(s.name for s in found)["step"] == STEPS
    assert not any(is_gpu(s) for s in found)


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_killed_with_no_warning_it_leaves_what_it_had_written(tmp_path: Path, suffix: str) -> None:
    output = f"trace{suffix}"
    program = f"import os, runpy; print(os.getpid()); runpy.run_path({TRAIN!r}, run_name='__main__')"
    command = recording(PYTHON, "-uc", program, output=output, device="simulated")
    with start(command, tmp_path, stdout=subprocess.PIPE) as recorder:
        said = recorder.stdout
        assert said is not None
        pid = int(said.readline())
        assert any(line.startswith(b"epoch 6") for line in said)
        os.kill(pid, signal.SIGKILL)
    assert recorder.returncode == -signal.SIGKILL
    names = Counter(s.name for s in slices(Engine(tmp_path / output)) if is_gpu(s))
    assert STEPS > names["step"] > STEPS / 4
    assert not list(tmp_path.glob(".*"))  # joined, and nothing to recover


def test_when_record_itself_is_killed_merge_recovers(tmp_path: Path) -> None:
    command = recording(PYTHON, "-u", TRAIN, device="simulated")
    with start(command, tmp_path, stdout=subprocess.PIPE) as recorder:
        said = recorder.stdout
        assert said is not None
        said.readline()  # the command is on its way
        recorder.kill()
        assert len(losses(said.read())) == EPOCHS  # and goes on to its end
    [folder] = tmp_path.glob(".trace.pftrace.*")
    done = run([PYTHON, "-m", "gputrace.cli.main", "merge", "-o", "late.pftrace", str(folder)], tmp_path)
    assert done.returncode == 0, done.stderr
    engine = Engine(tmp_path / "late.pftrace")
    assert_clean(engine)
    assert Counter(s.name for s in slices(engine) if is_gpu(s))["step"] == STEPS
    assert not list(tmp_path.glob(".*"))


#: Sections of the README whose commands read traces, and the names of those that they are given besides the first's.
READ = [
    "Sum traces up",
    "Compare runs",
    "Convert a trace, or cut a part out",
    "Check a trace",
    "Draw a piece of it, for a",
]
READ += ["Ask a trace in SQL"]
GIVEN = ["rank0.pftrace", "base.pftrace", "new.pftrace", "runs/a.pftrace"]


@pytest.mark.slow
def test_the_readme_s_commands_work_on_the_trace_that_it_records_first(tmp_path: Path) -> None:
    """As they stand there: times, patterns and names of slices are of that trace."""
    done = run(recording(PYTHON, TRAIN, device="simulated"), tmp_path)
    assert done.returncode == 0, done.stderr
    trace = (tmp_path / "trace.pftrace").read_bytes()
    (tmp_path / "runs").mkdir()
    for name in GIVEN:
        (tmp_path / name).write_bytes(trace)
    run([PYTHON, "-m", "gputrace", "convert", "trace.pftrace", "profile.json.gz"], tmp_path)
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    tried = 0
    for title in READ:
        _, found, rest = readme.partition(f"\n### {title}")
        assert found, title
        for block in re.findall(r"```sh\n(.*?)```", rest.partition("\n### ")[0], re.DOTALL):
            done = run(["bash", "-ec", f'gputrace() {{ {PYTHON} -m gputrace "$@"; }}\n{block}'], tmp_path)
            assert done.returncode == 0, (block, done.stderr)
            tried += block.count("gputrace ")
    assert tried >= 15
