"""Is a file one that Perfetto's UI can show? It looks at the file's beginning, before anybody waits for a browser.

The UI reads more kinds of files than gputrace does: `trace_processor/util/trace_type.cc` in Perfetto has the list.
"""

from __future__ import annotations

import re

from gputrace.errors import InputError
from gputrace.reading import recognise
from gputrace.reading.stream import ByteStream

_HEAD_BYTES = 1 << 16
_BEGINS = re.compile(
    rb"PK\x03\x04"  # a zip archive of traces
    rb"|PERFILE2"  # a recording of perf
    rb"|\x10\x00\x04\x46\x78\x54\x16\x00"  # Fuchsia's format
    rb"|SLOW|\*version\n|JAVA PROFILE"  # Android's runtime: methods, heap
    rb"|# ninja log"
    rb"|<\?xml version=\"1\.0\"\?>\n<trace-query-result>"  # Instruments
    rb"|9,0,i,vers,"  # Android's dumpstate
    rb"|(?s:.{257})ustar[\0 ]"  # a tar archive of traces
    rb"|\{\s*\"(?:meta|libs)\""  # a Gecko profile
)
#: systrace and ftrace as text or in a page, which say so in their first lines.
_HOLDS = re.compile(rb"# tracer|TRACE:\n")
#: A line of `perf script` or of Android's log.
_LINE = re.compile(
    rb"^[ \t]*+\S.*\s\d++(?:/\d++)?\s.*[^\d.]\d++\.\d++:\s|^(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d", re.MULTILINE
)


def refuse_no_trace(path: str) -> str:
    """What there is to say of a file that the UI reads and gputrace does not; "" for one that both do.

    Raises `InputError`, which says what is wrong with it, for one that cannot be read or that neither knows.
    """
    recognise.refuse_folder(path)
    with ByteStream(path) as stream:
        head = stream.read(_HEAD_BYTES)
    try:
        if recognise.recognise(path) == recognise.CHROME and b'"traceEvents"' not in head:
            from gputrace.reading.chrome import ChromeReader

            with ByteStream(path) as stream:
                next(ChromeReader(stream).batches(), None)
    except InputError as error:
        if not (_BEGINS.match(head) or _HOLDS.search(head) or _LINE.search(head[:4096])):
            raise
        return f"{error}. The UI reads more kinds of files than gputrace does, so it gets this one as it is"
    return ""
