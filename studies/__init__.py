"""Studies of many runs: sweeps, reproduction of claims, tuning, training runs and reports."""
