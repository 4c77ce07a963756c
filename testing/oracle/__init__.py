"""The oracle: the same network as the compiled engine, one SimPy event per thing that happens, meant to be obviously right.

`model` holds the clock and links, `port` and `switch` what switches are made of, `host` hosts, with their `timers`, `receivers` and `pulls`;
`flows` the records that transports work on; `uncompiled` turns the transports' compiled functions back into Python, so that no rule is written
twice; `whole` builds a network of them. `case` describes one run, `cases` makes it with the engine and with the oracle, and tells the first
difference.

Time is integer picoseconds. What happens at the same time at one node happens in the order of the *phases* of `model`.
"""

from gradwire.testing.oracle.case import Case, Change, Letter, Outcome
from gradwire.testing.oracle.cases import first_difference, run_engine, run_oracle

__all__ = ["Case", "Change", "Letter", "Outcome", "first_difference", "run_engine", "run_oracle"]
