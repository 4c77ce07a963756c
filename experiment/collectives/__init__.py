"""Collectives: how the workers of a job exchange their gradients.

`kinds` has one file for each kind of `[job.exchange]` table; what the larger ones do is in a module of its own here.
"""
