"""Parallel execution of runs: worker processes of this machine and Ray clusters."""
