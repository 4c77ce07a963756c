"""Mutation run: single faults in protocols and the engine's core, each of which some test should notice.

`python -m tests.mutation` draws the faults and tries them in a copy of the tree; `docs/testing.md` says how. Mutants are
made in `mutants`, `reach` records which tests reach which line, and `trial` runs the tests that reach a mutant.
"""
