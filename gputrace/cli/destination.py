"""Where a command's output goes: a path, or a URL, to which the file is brought once it is whole.

Until then it lies in a folder of temporary files, and it stays there if it cannot be brought: nothing is lost by a
network. It knows no format.
"""

from __future__ import annotations

import os
import threading

from gputrace import remote
from gputrace.cli.outcome import progress_bar
from gputrace.cli.say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Written(Protocol):
        """What was written: ``path`` is where, "" if nothing was."""

        path: str


_LOOK_EVERY_S = 0.1


class File:
    """A file of which there is no more to tell than where it was written."""

    def __init__(self, path: str) -> None:
        self.path = path


class Destination:
    """``local`` is the path to write. ``url`` is where `bring` takes that file, "" if it stays; ``folder`` is what it
    lies in until then. A context manager. Raises `UsageError` for a URL that takes no files.
    """

    def __init__(self, output: str) -> None:
        self.local = output
        self.url = self.folder = ""
        if remote.is_url(output):
            remote.check_output(output)
            here = remote.path_here(output)
            self.local, self.url = (here, "") if here else ("", output)

    def __enter__(self) -> Destination:
        if self.url:
            import tempfile

            self.folder = tempfile.mkdtemp(prefix="gputrace-")
            self.local = os.path.join(self.folder, os.path.basename(self.url))
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder and not os.listdir(self.folder):  # nothing was kept
            os.rmdir(self.folder)

    def rename(self, url: str, local: str) -> None:
        """The file is called otherwise, as its name has a rank in it: a URL, where it is brought to one, and here."""
        self.local = local
        if self.url:
            self.url = url

    @property
    def shown(self) -> str:
        """Where the file will be, as it may be shown."""
        return remote.shown(self.url) if self.url else self.local

    def bring(self, written: Written, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Take what was written to its URL, and name that as its path. Is it where it was asked for?

        ``interrupted`` is asked now and then whether to give up, which raises KeyboardInterrupt, as Ctrl-C does. That
        and what else is in the way is said, and where the file is kept then.
        """
        if not self.url or not written.path:
            return True
        if not self._bring(self.local, self.url, interrupted):
            return False
        written.path = self.shown
        return True

    def bring_others(self, interrupted: Callable[[], bool]) -> list[str]:
        """Take there what else was written beside the file, as the dumps of a recording. Returns where each is then."""
        brought = []
        for name in sorted(os.listdir(self.folder)) if self.folder else []:
            local, url = os.path.join(self.folder, name), self.url.removesuffix(os.path.basename(self.url)) + name
            # A recording's folder is hidden, and stays for what still runs.
            if not name.startswith(".") and local != self.local and self._bring(local, url, interrupted):
                brought.append(remote.shown(url))
        return brought

    def _bring(self, local: str, url: str, interrupted: Callable[[], bool]) -> bool:
        place = remote.shown(url)
        try:
            error = self._upload(local, url, interrupted)
        except KeyboardInterrupt:
            say(f"interrupted before it was in {place}; the whole file is kept: {local}")
            raise
        if error is not None:
            say(
                f"cannot write {place}: {remote.why(error)}. The whole file is kept: {local}; "
                "copy it there by the storage's own tool"
            )
            return False
        os.unlink(local)
        return True

    def _upload(self, local: str, url: str, interrupted: Callable[[], bool]) -> Exception | None:
        """In a thread of its own: a storage may keep one waiting where no Ctrl-C is looked at."""
        failed: list[Exception] = []
        went = [(0, os.path.getsize(local))]

        def upload() -> None:
            try:
                fs, path = remote.open_storage(url)
                remote.put(local, fs, path, lambda done, size: went.append((done, size)))
            except Exception as error:  # storages raise what they like
                failed.append(error)

        interrupted()  # what came before was meant for a recorded command
        thread = threading.Thread(target=upload, name="gputrace-upload", daemon=True)
        thread.start()
        with progress_bar(lambda: False, "uploading") as progress:
            while thread.is_alive():
                thread.join(_LOOK_EVERY_S)
                if interrupted():
                    raise KeyboardInterrupt
                if progress:
                    progress(*went[-1])
        return failed[0] if failed else None
