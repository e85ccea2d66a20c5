"""A trace's timeline as a picture, for a report or a pull request.

`choice` says which part of a trace is drawn, `rows` where each slice goes, `timeline` draws. It reads no file.
"""
