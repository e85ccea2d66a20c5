"""Showing a trace in Perfetto's web UI, from this machine to the browser of whoever asked.

`server` hands one file to one page, once; `guidance` knows where the browser is and what to tell a person. They know
nothing of what the file holds.
"""
