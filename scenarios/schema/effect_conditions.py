"""`Precondition` annotates a scenario's field with the condition under which its key has an effect, the reason and the
remedy.

    drr_quantum: Annotated[
        ..., Precondition(lambda at: at.switch.queues > 1, "one queue takes no turns", "switch.queues above 1")
    ]

A key whose precondition is not met changes no Result, whatever its value; `gradwire.scenarios.validation.effect` walks
a scenario and reports those that were set. A predicate is conservative: it returns True if the answer depends on data
outside the scenario, such as the trace. A test checks each declaration in runs, met and unmet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gradwire.scenarios.schema.network.hosts_in_use import are_at_one_switch, is_idle

Scenario = Any
"""`gradwire.scenarios.schema.scenario.Scenario`, whose fields declare their preconditions with this module."""


@dataclass(frozen=True)
class TableContext:
    """A table in a scenario, as predicates see it.

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
        override = None if self.owner is None else self.owner.transport
        return override if override is not None else self.scenario.transport

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
        """Return the queues that packets are sent to; None if the scenario alone does not determine them."""
        if not self.scenario.senders:
            return None
        queues = {self.switch.trim_priority} if self.switch.trim_threshold is not None else set()
        for sender, transport in self.carried():
            if ":" in transport.kind:
                return None
            queues.add(transport.control_priority)
            queues |= data_classes(sender, transport)
        return queues

    def is_trained(self) -> bool:
        """Return True if the scenario is for a training run, in which some keys have another meaning."""
        return self.scenario.training is not None


def data_classes(sender: Any, transport: Any) -> set[int]:
    """Return the queues that data of a job or traffic is sent to, however many the switches have."""
    tagging = getattr(sender, "tagging", None)
    priorities = (getattr(sender, "priority", 0),)
    if tagging is not None and tagging.layer_priority:
        priorities = tagging.priorities
    return {number for priority in priorities for number in transport.classes_from(priority)}


def is_marked(at: TableContext) -> bool:
    """Return True if switches may mark packets."""
    return at.switch.ecn_threshold is not None or at.switch.policy is not None


@dataclass(frozen=True)
class Precondition:
    """Precondition of a field, for `Annotated`.

    met : returns True if the key can have an effect.
    why : reason if it cannot; follows "has no effect: ".
    remedy : what to set so that it can; follows "for it to matter: ". The remedies of all unmet preconditions of a key
        suffice together.
    reach : what it does not affect, if not the whole Result, such as "on the run".
    names_default : True if an explicit default is reported too, because another rule applies then.
    """

    met: Callable[[TableContext], bool]
    why: str
    remedy: str
    reach: str = ""
    names_default: bool = False


SEVERAL_PATHS = Precondition(
    lambda at: at.scenario.topology.several_paths or at.scenario.host.gpus > 1 or ":" in at.scenario.load_balancing,
    "there is one path between any two hosts",
    "a topology with several paths",
)
"""For keys of path choice."""

SEVERAL_SWITCHES = Precondition(
    lambda at: not are_at_one_switch(at.scenario) or ":" in at.scenario.load_balancing,
    "all hosts that send or receive are at one switch",
    "workers, servers or traffic at several switches",
)
"""For keys of path choice, too."""

SEVERAL_ITERATIONS = Precondition(
    lambda at: at.owner is None or at.owner.iterations > 1 or at.is_trained(),
    "no iteration follows another one",
    "job.iterations above 1",
)
"""For keys of exchanges and schedulers that act on the next iteration."""

PACKETS = Precondition(
    lambda at: not at.is_trained() or at.scenario.training.network in ("simulated", "emulated"),
    "the training run's network has no packets",
    'training.network = "simulated" or "emulated"',
)
"""For keys of networks that carry packets."""

CABLE_IN_USE = Precondition(
    lambda at: not is_idle(at.scenario, at.table.between),
    "the host at this cable sends and receives nothing",
    "a cable in use",
)
"""For the ends of a cable that a table describes."""

REACTS_TO_MARKS = Precondition(is_marked, "no switch marks packets", "switch.ecn_threshold")
"""For keys of transports that react to ECN marks."""
