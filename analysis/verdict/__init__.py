"""Verdicts on runs: what bounds a job, which run is faster, and how certain that is."""
