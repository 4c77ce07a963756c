"""Test aids for authors of transports and load balancers; docs/testing.md has an example.

`FlowHarness` plays both ends of one flow by hand, packet by packet, with the functions that the engine compiles, as
plain Python. `Case` describes messages over a network; `agree` sends them through the engine and through the oracle, an
event-per-packet model, and raises at the first packet in which the two differ; `run_engine` and `run_oracle` are its
halves. `agree_on` does the same for the traffic of a scenario. `uncompiled` returns any function of a component as plain
Python.

Nothing here needs a test framework.
"""

from gradwire.jit.uncompiled import uncompiled
from gradwire.testing.flow_harness import FlowHarness, ReceiverReply, Word
from gradwire.testing.oracle import Case, MessageSpec, NetworkChange, Outcome, first_difference, run_engine, run_oracle
from gradwire.testing.scenario_comparison import Difference, agree, agree_on
from gradwire.testing.tables import transport

__all__ = [
    "Case",
    "Difference",
    "FlowHarness",
    "MessageSpec",
    "NetworkChange",
    "Outcome",
    "ReceiverReply",
    "Word",
    "agree",
    "agree_on",
    "first_difference",
    "run_engine",
    "run_oracle",
    "transport",
    "uncompiled",
]  # fmt: skip
