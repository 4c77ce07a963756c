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

from gradwire.scenarios.schema.in_use import is_idle

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

    def classes(self) -> set[int] | None:
        """Return the queues that packets are sent to; None if the scenario alone does not tell."""
        if not self.scenario.senders:
            return None
        found = {self.switch.trim_priority} if self.switch.trim_threshold is not None else set()
        for sender, transport in self.carried():
            if ":" in transport.kind:
                return None
            tagging = getattr(sender, "tagging", None)
            priorities = (getattr(sender, "priority", 0),)
            if tagging is not None and tagging.layer_priority:
                priorities = tagging.priorities
            found.add(transport.control_priority)
            for priority in priorities:
                found.update(transport.classes_from(priority))
        return found

    def is_trained(self) -> bool:
        """Return True if the scenario is of a training, in which some keys mean something else than in a run."""
        return self.scenario.training is not None


def is_marked(at: Situation) -> bool:
    """Return True if switches may mark packets."""
    return at.switch.ecn_threshold is not None or at.switch.policy is not None


@dataclass(frozen=True)
class Needs:
    """Marker of a field, for `Annotated`: when it matters.

    met : returns True if the key can matter.
    why : why it cannot, in words; it follows "has no effect: ".
    remedy : what would make it matter, in words; it follows "for it to matter: ". Together the remedies of all needs of
        a key that are not met are enough.
    reach : what it has no effect on, if not on all of a Result, such as "on the run".
    names_default : True if the default is named as well where it is written out, because something else acts then.
    """

    met: Callable[[Situation], bool]
    why: str
    remedy: str
    reach: str = ""
    names_default: bool = False


SEVERAL_PATHS = Needs(
    lambda at: at.scenario.topology.several_paths or at.scenario.host.gpus > 1 or ":" in at.scenario.load_balancing,
    "there is one path between any two hosts", "a topology with several paths",
)
"""Of keys that say which path packets take."""

SEVERAL_ITERATIONS = Needs(
    lambda at: at.owner is None or at.owner.iterations > 1 or at.is_trained(), "no iteration follows another one",
    "job.iterations above 1",
)
"""Of keys of exchanges and schedulers that act on the iteration after."""

PACKETS = Needs(
    lambda at: not at.is_trained() or at.scenario.training.network in ("simulated", "emulated"),
    "the network of the training has no packets", 'training.network = "simulated" or "emulated"',
)
"""Of keys that are of networks which carry packets."""

CABLE_IN_USE = Needs(
    lambda at: not is_idle(at.scenario, at.table.between), "nothing is sent from or to the host at this cable",
    "a cable in use",
)
"""Of the ends of a cable that something is said of."""

GOES_BY_MARKS = Needs(is_marked, "no switch marks packets", "switch.ecn_threshold")
"""Of keys of transports that go by ECN marks."""
