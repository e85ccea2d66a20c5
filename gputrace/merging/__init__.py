"""Putting traces of ranks, hosts and other tools on one timeline, in one file.

`inputs` finds the files, `survey` learns what each states, `plan` decides what must change in each, and the writers do
it: `rewrite` for Perfetto's packets, `events` for Chrome's events, `transfer` from the one format to the other.
"""
