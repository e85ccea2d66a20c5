"""Tests and figures that need a real CUDA device; `run.py` runs them all."""
