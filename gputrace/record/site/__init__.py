"""The folder a recording puts in front of PYTHONPATH: it holds `sitecustomize` and must hold nothing else."""
