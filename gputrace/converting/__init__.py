"""One trace to another format, whole or a part of it; what `gputrace convert` does.

`convert` decides how; `course` and `streamed` write packets as they are read, `drawn` writes columns by an exporter,
`tabular` writes them as tables. It knows no command line.
"""
