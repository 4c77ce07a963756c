"""Collectives: exchanges of gradients between the workers of a job.

Each kind of `[job.exchange]` table is one file in `allreduce/`, `exchanges/` or `primitives/`; larger kinds have their
implementation in a module beside it.
"""
