"""The budgets, measured side by side in one run. Timings are ratios; nothing here asserts an absolute time."""
