"""Work on each of many traces: here, one after another, or in parallel on Dask.

It knows neither what the work is nor a command line.
"""
