"""Needs: what a key of a scenario needs of other keys to matter, declared beside the field.

    drr_quantum: Annotated[..., Needs(lambda at: at.switch.queues > 1, "one queue takes no turns", "more queues")]

A key whose need is not met changes no Result, whatever its value; `gradwire.scenarios.checks.effect` walks a scenario
and names those that were set. A predicate is conservative: it says True where it depends on what is not in the
scenario, such as the trace. A test tries each declaration in runs, met and unmet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Scenario = Any
"""`gradwire.scenarios.schema.scenario.Scenario`, whose fields declare their needs by this module."""


@dataclass(frozen=True)
class Situation:
    """A table in a scenario: what predicates look at.

    scenario : the whole.
    table : the table that has the key.
    owner : the job or traffic around it, or itself; None outside of both.
    """

    scenario: Scenario
    table: Any
    owner: Any

    @property
    def switch(self) -> Any:
        """Return the table [switch]."""
        return self.scenario.switch

    @property
    def transport(self) -> Any:
        """Return the transport that carries the owner, or the scenario's."""
        own = None if self.owner is None else self.owner.transport
        return own if own is not None else self.scenario.transport

    def senders(self) -> Iterator[Any]:
        """Yield the jobs and traffic that a transport table carries: its owner, or all that name none."""
        if self.owner is not None:
            yield self.owner
            return
        for sender in self.scenario.senders:
            if sender.transport is None:
                yield sender

    def carried(self) -> Iterator[tuple[Any, Any]]:
        """Yield every sender of the scenario with its transport."""
        for sender in self.scenario.senders:
            yield sender, sender.transport or self.scenario.transport


def is_marked(at: Situation) -> bool:
    """Return True if switches may mark packets."""
    return at.switch.ecn_threshold is not None or at.switch.policy is not None


@dataclass(frozen=True)
class Needs:
    """Marker of a field, for `Annotated`: when it matters.

    met : returns True if the key can matter.
    why : why it cannot, in words; it follows "has no effect: ".
    remedy : what would make it matter, in words; it follows "for it to matter: ".
    """

    met: Callable[[Situation], bool]
    why: str
    remedy: str


GOES_BY_MARKS = Needs(is_marked, "no switch marks packets", "switch.ecn_threshold")
"""Of keys of transports that go by ECN marks."""
