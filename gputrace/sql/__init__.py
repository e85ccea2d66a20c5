"""Asking a trace in PerfettoSQL, on Perfetto's own trace processor.

`find.open_engine` finds one and starts it: `native` is a program beside this one, `wasm` the same engine inside this
process. Both speak the messages of `wire`, whose `Engine` loads a trace and answers queries. What goes wrong is an
`EngineError`, or a `QueryError` that knows the place in the SQL. It knows neither gputrace's traces nor its exporters.
"""
