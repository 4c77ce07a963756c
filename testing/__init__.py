"""Aids for whoever writes a transport or a load balancer of their own; docs/testing.md has an example.

`Ends` plays both ends of one flow by hand, packet by packet, with the very functions that the engine compiles, as plain
Python. `Case` describes messages over a network; `agree` sends them through the engine and through the oracle, a model with
an event for everything that happens, and raises at the first packet in which the two differ; `run_engine` and
`run_oracle` are its halves. `agree_on` does the same for what a scenario sends.

Nothing here needs a test framework.
"""

from gradwire.testing.ends import Ends, Reply, Word
from gradwire.testing.oracle import Case, Change, Letter, Outcome, first_difference, run_engine, run_oracle
from gradwire.testing.scenario import Difference, agree, agree_on
from gradwire.testing.tables import transport

__all__ = [
    "Case", "Change", "Difference", "Ends", "Letter", "Outcome", "Reply", "Word", "agree", "agree_on", "first_difference",
    "run_engine", "run_oracle", "transport",
]  # fmt: skip
