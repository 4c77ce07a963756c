"""Incremental simulation of programs: one iteration, or one worker's turn, at a time."""
