"""What is wrong with a trace: rules over its tables, whatever tool wrote it.

`rules` are functions that return violations; `check` runs them, `sieve` keeps of a file what they ask for. It
mends nothing.
"""
