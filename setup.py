"""Builds the compiled twin of the hot path where a C compiler is, and says in one line where it is left out.

All else is in pyproject.toml.
"""

import glob
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
#: One wheel serves every Python from here on; free-threaded ones have no stable interface yet.
LIMITED_API = None if FREE_THREADED else "0x030B0000"


class BuildIfPossible(build_ext):
    """Without a compiler, or away from Linux, gputrace works all the same: in pure Python."""

    def run(self):
        if sys.platform != "linux":
            self._leave_out(f"it is for Linux, and this is {sys.platform}")
            return
        try:
            super().run()
        except Exception as error:  # whatever the compiler, or the lack of one, raises
            self._leave_out(_in_one_line(error))

    def _leave_out(self, why):
        print(f"gputrace: the compiled part is left out, the pure one does its work: {why}", file=sys.stderr)
        self.extensions = []


class NamedForWhatItHolds(bdist_wheel):
    """A wheel in which the compiled part was left out is for every machine."""

    def get_tag(self):
        built = self.get_finalized_command("build_ext").extensions
        return super().get_tag() if built else ("py3", "none", "any")


def _in_one_line(error):
    cause = error
    while cause is not None:
        if isinstance(cause, subprocess.CalledProcessError):  # whose own text is all of a long command line
            return f"{cause.cmd[0]} failed with exit status {cause.returncode}"
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split()) or type(error).__name__


core = Extension(
    "gputrace.hot._hot",
    sources=["gputrace/hot/_hot.c", *sorted(glob.glob("gputrace/hot/native/*.c"))],
    depends=sorted(glob.glob("gputrace/hot/native/*.h")),
    define_macros=[("Py_LIMITED_API", LIMITED_API)] if LIMITED_API else [],
    extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra"],
    libraries=["pthread"],
    py_limited_api=LIMITED_API is not None,
)

setup(
    ext_modules=[core],
    cmdclass={"build_ext": BuildIfPossible, "bdist_wheel": NamedForWhatItHolds},
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
