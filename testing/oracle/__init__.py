"""The oracle: an obviously correct model of the compiled engine's network, with one SimPy event per occurrence.

`clock` has the clock and links, `port` and `switch` the parts of switches, `host` hosts, with their `timers`,
`receivers` and `pull_pacer`; `flows` the records that transports work on; `uncompiled` turns the transports' compiled
functions back into Python, so that no rule is written twice; `oracle` builds a network of them. `case` describes one
run, `case_runs` runs it with the engine and with the oracle, and reports the first difference.

Time is integer picoseconds. Simultaneous events at one node are ordered by the *phases* of `clock`.
"""

from gradwire.testing.oracle.case import Case, MessageSpec, NetworkChange, Outcome
from gradwire.testing.oracle.case_runs import first_difference, run_engine, run_oracle

__all__ = ["Case", "MessageSpec", "NetworkChange", "Outcome", "first_difference", "run_engine", "run_oracle"]
