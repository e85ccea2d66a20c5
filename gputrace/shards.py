"""The folder one recording's shards live in, as the launcher and every traced process see it.

It knows no trace format and no device. Its files, all private to the user::

    recording    what every process shares, written once by whoever started the recording
    recording.copy  the same: without it, nothing can be made of the rest
    metadata     facts for the trace's header, written once
    snapshots    the host clocks, one line a reading
    processes    one line a Python process that reached gputrace's boot, traced or not
    writers      one line a shard number: which process image took it; the launcher's own is -1
    notes        one line a failure that had nobody to tell
    nested       one line a recording that was started inside this one: its output
    N.shard      what process image N wrote, in the output's own format
    N.ring       what process image N has not put into its shard yet, while it runs or if it was killed
    N.tail       what was drawn of such a ring, for the end of the shard; as N.mended and, of kept pieces, N.shard it
                 lies elsewhere where the trace is put elsewhere
    N.mended     what is good of a damaged shard
    N.K.kept     what process image N keeps of its last seconds, in pieces that count from 0
    K.asked      when a process asked for what all keep to be written now, for the Kth time
    N.report     what process image N counted
    N.E.failed   nothing: its name says that process image N could write no report any more, and why (an errno, E)

`gputrace.textfiles` reads and writes the text files, so that a folder is readable at any moment, and damage told. A
traced program pays for this import and for `open` and `claim` before its first line runs.
"""

from __future__ import annotations

import errno
import os

from gputrace import hostclock, textfiles
from gputrace.descriptors import OwnFile, write_file
from gputrace.errors import OutputError
from gputrace.fence import let_through
from gputrace.model import ClockSnapshot, Recording
from gputrace.textfiles import Damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gputrace.textfiles import Value, Values

#: Shard numbers are below this: formats pack one beside a track's number into 32 bits, and Perfetto's engine loses the
#: clock of a sequence whose id does not fit in 31.
NUMBER_LIMIT = 1 << 19

#: Stands for the launcher among the writers: it takes no shard.
LAUNCHER = -1

#: The recording's own file and its copy.
RECORDING_FILES = ("recording", "recording.copy")

#: The option that says which clocks the recording is by: `gputrace.hostclock.namespace`.
CLOCKS = "time_namespace"

#: Precedes the names of options in the file "recording".
_OPTION = "option."

# O_EXCL already refuses a link in the last place; O_NOFOLLOW says so for the opens that do not create.
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW


class ShardFolder:
    """One recording's folder. Make one with `create` or `open`.

    ``path`` is absolute, so a program may change its directory. ``suffix`` is the output's ("`.pftrace`"), without
    ``.gz``; ``exporter`` is "module:Class"; ``device`` the kind of device: "cuda", "simulated" or "host". Shard numbers
    begin at ``first_number``, so that those of recordings that belong together can be kept apart. ``unmasked``: command
    lines are kept as they are, secrets and all. ``ring_bytes``: how much a process keeps in its ring at most; 0 for the
    tracer's own bound. ``instruments``: the patches that each process applies, as `gputrace.instrument.start` takes
    them. ``options``: what else every process is told, by name; whoever reads one says what it means.
    ``damage`` grows while files are read: what is wrong with a file, by its name, of those that are not as they were
    written. They are read as if they were not there, or without their damaged lines. ``drawn_in`` is the folder for
    what is drawn of its files until it is in a trace: this one, unless whoever makes the trace says otherwise.
    """

    __slots__ = (
        "damage",
        "device",
        "drawn_in",
        "exporter",
        "first_number",
        "instruments",
        "options",
        "path",
        "recording",
        "ring_bytes",
        "suffix",
        "unmasked",
    )

    def __init__(
        self,
        path: str,
        recording: Recording,
        suffix: str,
        exporter: str,
        device: str,
        first_number: int = 0,
        unmasked: bool = False,
        ring_bytes: int = 0,
        instruments: Sequence[str] = (),
        options: Mapping[str, Value] | None = None,
    ) -> None:
        self.path = path
        self.recording = recording
        self.suffix = suffix
        self.exporter = exporter
        self.device = device
        self.first_number = first_number
        self.unmasked = unmasked
        self.ring_bytes = ring_bytes
        self.instruments = list(instruments)
        self.options = dict(options or {})
        self.damage: dict[str, str] = {}
        self.drawn_in = path

    @classmethod
    def create(
        cls,
        path: str,
        recording: Recording,
        suffix: str,
        exporter: str,
        device: str,
        first_number: int = 0,
        unmasked: bool = False,
        ring_bytes: int = 0,
        instruments: Sequence[str] = (),
        options: Mapping[str, Value] | None = None,
    ) -> ShardFolder:
        """Write ``recording`` into a folder that exists, is empty and is private. Raises OSError if it cannot."""
        path = os.path.abspath(path)
        values: Values = {
            "id": recording.id,
            "base_ns": recording.base_ns,
            "boottime_offset_ns": recording.boottime_offset_ns,
            "suffix": suffix,
            "exporter": exporter,
            "device": device,
            "first_number": first_number,
            "unmasked": unmasked,
            "ring_bytes": ring_bytes,
            "instruments": list(instruments),
            **{f"{_OPTION}{name}": value for name, value in (options or {}).items()},
        }
        for name in RECORDING_FILES:
            textfiles.write_values(os.path.join(path, name), values)
        return cls(path, recording, suffix, exporter, device, first_number, unmasked, ring_bytes, instruments, options)

    @classmethod
    def open(cls, path: str) -> ShardFolder:
        """The folder as it was created. Raises OSError if it is gone, `OutputError` if it is no shard folder."""
        path = os.path.abspath(path)
        damage: dict[str, str] = {}
        for name in RECORDING_FILES:
            try:
                folder = cls._from(path, textfiles.read_values(os.path.join(path, name)))
            except NotADirectoryError:
                raise
            except OSError as error:
                damage[name] = _why(error)
            except Damaged as damaged:
                damage[name] = str(damaged)
            else:
                folder.damage = damage
                return folder
        if set(damage.values()) == {_MISSING}:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        told = ", and ".join(f"its file {name!r} {what}" for name, what in damage.items())
        raise OutputError(f"no trace can be made of {path}: {told}")

    @classmethod
    def _from(cls, path: str, values: Values) -> ShardFolder:
        def text(name: str) -> str:
            value = values.get(name)
            if not isinstance(value, str):
                raise Damaged(f"has no {name!r}")
            return value

        def number(name: str, default: int | None = None) -> int:
            value = values.get(name, default)
            if not isinstance(value, int):
                raise Damaged(f"has no {name!r}")
            return value

        recording = Recording(text("id"), number("base_ns"), number("boottime_offset_ns"))
        instruments = values.get("instruments", [])
        options = {name.removeprefix(_OPTION): value for name, value in values.items() if name.startswith(_OPTION)}
        return cls(
            path,
            recording,
            text("suffix"),
            text("exporter"),
            text("device"),
            number("first_number", 0),
            bool(number("unmasked", 0)),
            number("ring_bytes", 0),
            instruments if isinstance(instruments, list) else [],
            options,
        )

    # Shards

    def claim(self) -> int:
        """Take the next free shard number by creating its file, empty. No other process ever gets the same one.

        A pid would not do: fork and exec reuse them. Raises OSError if the folder is gone, the disk is full or all
        numbers are taken.
        """
        number = self._next_number()
        while number < NUMBER_LIMIT:
            try:
                OwnFile(self.shard_path(number), _NEW).close()
            except FileExistsError:  # another process was quicker
                number += 1
            else:
                self.add_writer(number)
                return number
        raise OSError(f"all {NUMBER_LIMIT} shard numbers of {self.path} are taken")

    def _next_number(self) -> int:
        """Where to begin to look: a file grows by a byte a claim, so that the thousandth need not list the folder."""
        write_file(f"{self.path}/numbers", _APPEND, b".")
        return self.first_number + os.stat(f"{self.path}/numbers").st_size - 1

    def shard_path(self, number: int) -> str:
        """Where process image ``number`` writes, always at the end: see `gputrace.shardfile.ShardFile`."""
        return f"{self.path}/{number}.shard"

    def numbers(self) -> list[int]:
        """The shard numbers taken so far, in order."""
        return self._numbered(".shard")

    def ring_path(self, number: int) -> str:
        """Where process image ``number`` keeps what is not in its shard yet: see `gputrace.record.ringfile.Ring`."""
        return f"{self.path}/{number}.ring"

    def rings(self) -> list[int]:
        """The shard numbers of the process images that run, or ended without a clean end; in order."""
        return self._numbered(".ring")

    def tail_path(self, number: int) -> str:
        """Where what a killed process left in its ring is written: see `gputrace.record.salvage`."""
        return f"{self.drawn_in}/{number}.tail"

    def mended_path(self, number: int) -> str:
        """Where what is good of a damaged shard is written: see `gputrace.record.mended`."""
        return f"{self.drawn_in}/{number}.mended"

    # The last seconds

    def drawn_path(self, number: int) -> str:
        """Where what process image ``number`` keeps is drawn: see `gputrace.record.kept`."""
        return f"{self.drawn_in}/{number}.shard"

    def kept_path(self, number: int, index: int) -> str:
        """A piece of what process image ``number`` keeps: see `gputrace.keeping`."""
        return f"{self.path}/{number}.{index}.kept"

    def kept_numbers(self) -> list[int]:
        """The shard numbers of the process images that keep something, in order."""
        return sorted({number for number, _ in self._pieces()})

    def kept_paths(self, number: int) -> list[str]:
        """The pieces of process image ``number``, oldest first."""
        return [self.kept_path(number, index) for each, index in sorted(self._pieces()) if each == number]

    def _pieces(self) -> list[tuple[int, int]]:
        names = (name.split(".") for name in os.listdir(self.path) if name.endswith(".kept"))
        return [(int(name[0]), int(name[1])) for name in names if len(name) == 3 and all(map(_is_number, name[:2]))]

    def ask_for_dump(self, now_ns: int) -> int:
        """Ask for what all processes keep to be written now. Returns which request that is, from 1. Raises OSError."""
        number = 1
        while True:
            path = f"{self.path}/{number}.asked"
            try:
                OwnFile(path, _NEW).close()
            except FileExistsError:
                number += 1
            else:
                write_file(path, _APPEND, b"%d" % now_ns)
                return number

    def dumps_asked_for(self) -> dict[int, int]:
        """When each dump was asked for, in ns, by its number. Raises OSError."""
        found = {}
        for number in self._numbered(".asked"):
            text = textfiles.read(f"{self.path}/{number}.asked").decode("ascii", "replace")
            if _is_number(text):  # else it is being written
                found[number] = int(text)
        return found

    def dump_output(self, number: int) -> str:
        """Where a dump goes: "trace.pftrace.gz" has "trace.2.pftrace.gz"; "" if the recording keeps none."""
        output = str(self.options.get("output", ""))
        stem, inner = output, ""
        for suffix in (".gz", self.suffix):
            if stem.lower().endswith(suffix):
                stem, inner = stem[: -len(suffix)], stem[-len(suffix) :] + inner
        return f"{stem}.{number}{inner}" if output else ""

    def has_our_clocks(self) -> bool:
        """Does this process read the clocks of the recording?"""
        ours, theirs = hostclock.namespace(), self.options.get(CLOCKS)
        return not (ours and theirs) or ours == theirs

    # Reports

    def write_report(self, number: int, values: Mapping[str, Value]) -> None:
        """Replace what process image ``number`` says about itself: ints, strings, lists of strings, by name.

        Whole or not at all: a process killed meanwhile leaves its last report. Raises OSError.
        """
        textfiles.write_values(f"{self.path}/{number}.report", values)

    def reports(self) -> dict[int, Values]:
        """The reports written so far, by shard number. A process killed early has a shard and no report."""
        return {number: self.report(number) for number in self._numbered(".report")}

    def report(self, number: int) -> Values:
        """What process image ``number`` last said about itself; empty if nothing."""
        return self._values(f"{number}.report")

    def add_failure(self, number: int, error: OSError) -> None:
        """Note why process image ``number`` cannot report: a full disk still takes an empty file. Raises OSError."""
        OwnFile(f"{self.path}/{number}.{error.errno or 0}.failed", _APPEND).close()

    def failures(self) -> dict[int, int]:
        """The errno for which a process image could report nothing, by its number."""
        names = (name.split(".") for name in os.listdir(self.path) if name.endswith(".failed"))
        return {int(name[0]): int(name[1]) for name in names if len(name) == 3 and all(map(_is_number, name[:2]))}

    def add_begun(self, number: int) -> None:
        """Note that process image ``number`` has recorded something: a link to its shard, which takes no room and no
        descriptor; an empty file where the file system has no links. Raises OSError.
        """
        path = f"{self.path}/{number}.begun"
        try:
            os.link(self.shard_path(number), path)
        except OSError as error:
            let_through(error)
            OwnFile(path, _APPEND).close()

    def begun(self) -> set[int]:
        """The process images that said so: those whose records do not outlive a kill at once."""
        return set(self._numbered(".begun"))

    # What the launcher keeps

    def write_metadata(self, values: Mapping[str, Value]) -> None:
        """Keep facts for the trace's header, so that the trace can be put together without the launcher."""
        textfiles.write_values(f"{self.path}/metadata", values)

    def metadata(self) -> Values:
        """What `write_metadata` kept; empty if nothing was."""
        return self._values("metadata")

    def add_snapshot(self, snapshot: ClockSnapshot) -> None:
        """Append one reading of the host clocks. Raises OSError."""
        self._append("snapshots", f"{snapshot.boottime_ns} {snapshot.monotonic_ns} {snapshot.realtime_ns}")

    def snapshots(self) -> list[ClockSnapshot]:
        """The readings so far, sorted by monotonic time."""
        rows = [line.split(" ") for line in self._lines("snapshots")]
        found = [ClockSnapshot(*map(int, row)) for row in rows if len(row) == 3 and all(map(_is_number, row))]
        return sorted(found, key=lambda snapshot: snapshot.monotonic_ns)

    # What booting processes leave

    def add_process(self, pid: int, executable: str) -> None:
        """Note that a Python process reached gputrace's boot. Raises OSError."""
        self._append("processes", f"{pid} {executable}")

    def processes(self) -> list[str]:
        """One "PID EXECUTABLE" a Python process that reached gputrace's boot, in order."""
        return self._lines("processes")

    def add_writer(self, number: int) -> None:
        """Note that this process image writes shard ``number``. Raises nothing: a full disk shows where it writes."""
        try:
            self._append("writers", f"{number} {process_image('self')}")
        except OSError:
            pass

    def writers(self) -> list[tuple[int, str]]:
        """Shard numbers in the order taken, each with its writer as `process_image` names it."""
        rows = [line.partition(" ") for line in self._lines("writers")]
        return [(int(number), image) for number, _, image in rows if image and _is_number(number)]

    def add_nested(self, output: str) -> None:
        """Note that a recording into ``output`` was started inside this one. Raises OSError."""
        self._append("nested", output)

    def nested(self) -> list[str]:
        """The outputs of the recordings started inside this one, in order."""
        return self._lines("nested")

    def add_note(self, text: str) -> None:
        """Note a failure that had nobody to tell: a traced program's own stderr is not ours. Raises OSError."""
        write_file(f"{self.path}/notes", _APPEND, textfiles.encode(text.replace("\n", " ")) + b"\n")

    def notes(self) -> list[str]:
        """The notes so far, in order. Any interpreter may have written one, so they have no check."""
        try:
            data = textfiles.read(f"{self.path}/notes")
        except OSError as error:
            self._is_damaged("notes", _why(error))
            return []
        return data.decode("utf-8", "surrogateescape").split("\n")[:-1]

    def _append(self, name: str, line: str) -> None:
        textfiles.append_line(f"{self.path}/{name}", line)

    def _values(self, name: str) -> Values:
        try:
            values = textfiles.read_values(f"{self.path}/{name}")
        except OSError as error:
            self._is_damaged(name, _why(error))
        except Damaged as damaged:
            self._is_damaged(name, str(damaged))
        else:
            self.damage.pop(name, None)  # it was read while it was written
            return values
        return {}

    def _lines(self, name: str) -> list[str]:
        try:
            lines, damaged = textfiles.read_lines(f"{self.path}/{name}")
        except OSError as error:
            self._is_damaged(name, _why(error))
        except Damaged as empty:
            self._is_damaged(name, str(empty))
        else:
            self.damage.pop(name, None)
            if damaged:
                self._is_damaged(name, f"has {damaged} damaged line{'s' if damaged > 1 else ''}")
            return lines
        return []

    def _is_damaged(self, name: str, what: str) -> None:
        if what != _MISSING:  # most files come to be when there is something to say
            self.damage[name] = what

    def _numbered(self, ending: str) -> list[int]:
        stems = (name[: -len(ending)] for name in os.listdir(self.path) if name.endswith(ending))
        numbers = {stem: int(stem) for stem in stems if _is_number(stem)}
        return sorted(n for stem, n in numbers.items() if 0 <= n < NUMBER_LIMIT and stem == str(n))


#: What is wrong with a file that is not there.
_MISSING = "is not there"


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return _MISSING
    return f"cannot be read ({error.strerror})"


def process_image(pid: int | str) -> str:
    """ "PID START EXECUTABLE" of a process that runs here, by its pid or "self"; "" if there is none. Linux.

    A pid that was used again has another start, one that went through exec mostly another executable. START is in
    clock ticks since the boot. EXECUTABLE is empty where it may not be seen: of another user's process.
    """
    try:
        # After the name, which may hold anything. The pid is the file's, as /proc counts, not a container's.
        stat = textfiles.read(f"/proc/{pid}/stat").decode("ascii", "replace")
        fields = stat[stat.rindex(")") + 2 :].split(" ")
        if fields[0] in "ZX":
            return ""
        image = f"{stat[: stat.index(' ')]} {fields[19]} "
    except (OSError, ValueError, IndexError):
        return ""
    try:
        return image + os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return image


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")  # `LAUNCHER` is negative
    return digits.isascii() and digits.isdecimal() and len(digits) <= 19  # 64 bits
