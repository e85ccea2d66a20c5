"""Python imports this before a traced program's first line: it starts gputrace and steps aside.

It may be met by any interpreter the command starts, with gputrace installed or not, so it keeps to syntax that all of
them read. It defines no function and leaves no trace: afterwards `sys.path` and `sys.modules` are as they would have
been. Only PYTHONPATH keeps naming this folder, so that child processes find it too.
"""

import os
import sys

if __name__ == "sitecustomize":
    _here = os.path.dirname(__file__)
    sys.path[:] = [_entry for _entry in sys.path if _entry != _here]
    sys.path_importer_cache.pop(_here, None)

    _folder = os.environ.get("GPUTRACE_RECORD", "")
    if os.path.isdir(_folder):  # a process that outlives its recording may still start others
        try:
            if sys.version_info < (3, 11):  # noqa: UP036
                raise ImportError("gputrace needs Python 3.11 or later")
            try:
                from gputrace.record import boot
            except ImportError:
                # Another environment than the launcher's. The path is lent for this import alone: what else lies
                # beside gputrace belongs to another environment.
                _path = sys.path[:]
                sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_here))))
                try:
                    from gputrace.record import boot
                finally:
                    sys.path[:] = _path
            boot.boot(_folder)
        except Exception as _error:  # whatever it is, it must not reach the program
            _note = "%d %s: %s: %s\n" % (os.getpid(), sys.executable, type(_error).__name__, _error)  # noqa: UP031
            try:
                with open(os.path.join(_folder, "notes"), "a") as _notes:
                    _notes.write(_note)
            except Exception:
                pass

    # Import the one this shadows just as Python would have. If there is none, this raises the very error that Python
    # expects here and ignores, and no `sitecustomize` is left behind.
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
