"""A whole trace in memory, as columns: what `gputrace.read` returns, for whoever sums up, compares, checks or draws.

`read` opens a file, `perfetto` and `chrome` gather its events, `nesting` makes slices of them, `trace` is the result.
It knows no output, and moves no time: `gputrace.merging` puts traces onto one timeline.
"""
