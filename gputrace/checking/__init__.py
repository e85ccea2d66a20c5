"""What is wrong with a trace: rules over its tables, whatever tool wrote it.

`rules` are functions that return violations; `check` runs them. It mends nothing, and knows no file format.
"""
