"""Runs tests over a compiled twin that watches itself: `python -m tests.sanitizers WHICH [PYTEST ARGUMENT]...`.

WHICH is "address" (AddressSanitizer), "undefined" (UndefinedBehaviorSanitizer), "thread" (ThreadSanitizer) or "leaks"
(LeakSanitizer, over `workload.py`). The tree is copied and the core built there, so nothing here changes. What a
sanitizer says in any process of the run fails it, also in one whose end no test looks at.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
COPIED = ["gputrace", "exporters", "examples", "tests", "setup.py", "pyproject.toml", "README.md", "LICENSE"]

#: What exercises the core: its own tests, and those of threads, forks, tasks and the tracer.
SUITE = ["tests/hot", "tests/test_max_size.py", "-m", "not slow", "-n", "2", "--timeout=600"]
SUITE += [f"tests/test_{name}.py" for name in ("threads", "fork", "asyncio", "generators", "greenlets", "use_stream")]
SUITE += [f"tests/test_tracer_{name}.py" for name in ("programs", "bounds", "writing")]

STRESS = ["tests/hot/test_stress.py", "-k", "compiled", "--timeout=600"]


class Sanitizer(NamedTuple):
    """``libraries``: what every process must have loaded before all else. ``chosen``: what pytest is told besides."""

    flags: str
    libraries: list[str]
    environment: dict[str, str]
    chosen: tuple[str, ...] = ()


SANITIZERS = {
    "address": Sanitizer(
        "-fsanitize=address",
        ["libasan.so", "libstdc++.so.6"],  # greenlet throws
        {
            "PYTHONMALLOC": "malloc",  # else Python's own pools hide what happens to its objects
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:log_path={log}",
        },
    ),
    # By itself: two sanitizers' libraries in one process share where they report to, and one of them is not heard.
    "undefined": Sanitizer("-fsanitize=undefined", [], {"UBSAN_OPTIONS": "print_stacktrace=1:log_path={log}"}),
    "leaks": Sanitizer(
        "-fsanitize=address",
        ["libasan.so"],
        {"PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=1:exitcode=0:log_path={log}"},
    ),
    "thread": Sanitizer(
        "-fsanitize=thread -Wno-tsan",
        ["libtsan.so"],
        {
            "PYTHONMALLOC": "malloc",
            "TSAN_OPTIONS": f"suppressions={HERE / 'thread.supp'}:die_after_fork=0:exitcode=0:log_path={{log}}",
        },
        ("--ignore=tests/hot/test_twins.py",),  # many programs of one thread each
    ),
}


def main() -> int:
    which, *arguments = sys.argv[1:] or [""]
    if which not in SANITIZERS:
        sys.exit(f"python -m tests.sanitizers {'|'.join(SANITIZERS)} [PYTEST ARGUMENT]...")
    sanitizer = SANITIZERS[which]
    with tempfile.TemporaryDirectory(prefix="gputrace-sanitizer-") as temporary:
        tree, logs = Path(temporary, "tree"), Path(temporary, "logs")
        logs.mkdir()
        copy(tree)
        build(tree, sanitizer.flags)
        environment = watched(sanitizer, tree, logs)
        if which == "leaks":
            code = run([sys.executable, "-m", "tests.sanitizers.workload"], tree, environment)
        else:
            runs = [arguments] if arguments else [[*SUITE, *sanitizer.chosen], STRESS]
            pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
            code = max(run([*pytest, *chosen], tree, environment) for chosen in runs)
        said = reports(logs, which)
    for report in said:
        print(report, file=sys.stderr)
    print(f"{which}: {len(said)} reports, exit status {code}")
    return 1 if said else code


def copy(tree: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "build", ".hypothesis")
    tree.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)


def build(tree: Path, flags: str) -> None:
    """The core with a sanitizer in it, in place. Ends the run if there is none."""
    flags = f"{flags} -g -fno-omit-frame-pointer"
    environment = {**os.environ, "CC": "gcc", "CFLAGS": flags, "LDFLAGS": flags}
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tree, env=environment, check=True)
    if not list(tree.glob("gputrace/hot/_hot*.so")):
        sys.exit("the core was not built")


def watched(sanitizer: Sanitizer, tree: Path, logs: Path) -> dict[str, str]:
    """The environment of a Python that has this tree and the sanitizer's library, which must be loaded first."""
    libraries = []
    for name in sanitizer.libraries:
        command = ["gcc", f"-print-file-name={name}"]
        libraries.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        if not os.path.isabs(libraries[-1]):
            sys.exit(f"gcc has no {name} here")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUTRACE_")}
    environment |= {name: value.format(log=logs / "report") for name, value in sanitizer.environment.items()}
    environment |= {
        "LD_PRELOAD": " ".join(map(os.path.realpath, libraries)),
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    check = "from gputrace import hot; from gputrace.hot import _hot; print(hot.TWIN, _hot.__file__)"
    done = subprocess.run([sys.executable, "-c", check], cwd=tree, env=environment, capture_output=True, text=True)
    if not done.stdout.startswith(f"compiled {tree}"):
        sys.exit(f"the core that was built cannot be loaded: {done.stdout}{done.stderr}")
    return environment


def run(command: list[str], tree: Path, environment: dict[str, str]) -> int:
    # Shadow memory has fixed places, and a kernel that spreads mappings wider than the sanitizer knows may take them.
    return subprocess.run(["setarch", "-R", *command], cwd=tree, env=environment).returncode


def reports(logs: Path, which: str) -> list[str]:
    """What was said in any process. Of leaks those that the core allocated: Python has its own at its end."""
    texts = [path.read_text(errors="replace") for path in sorted(logs.iterdir())]
    if which != "leaks":
        return texts
    blocks = [block for text in texts for block in re.split(r"\n(?=Direct leak|Indirect leak|SUMMARY)", text)]
    return [block for block in blocks if block.startswith("Direct leak") and "gputrace/hot/" in block]


if __name__ == "__main__":
    sys.exit(main())
