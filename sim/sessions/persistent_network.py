"""`PersistentNetwork` builds a scenario's network, keeps it between a job's iterations, and rebuilds it to free memory.

Flows take memory as long as the engine lives. So after `MAX_MESSAGES` messages the network is rebuilt, as after a long
rest: the state of pairs is forgotten, and other random numbers are drawn.

Traffic beside the job continues across rebuilds: its flows keep the times they have in a run, counted from the first
build while a network exists; flows under way at a rebuild are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradwire.result_store.missing_packets import COLUMNS
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loss import allowed_loss_per_message
from gradwire.sim.preparation import check_paths, prepare_inputs
from gradwire.sim.processes.coupling import Coupling
from gradwire.sim.run import submitted_messages
from gradwire.sim.stall_timeout import stall_timeout_ps
from gradwire.topology import HostCards, Network
from gradwire.topology.placement import HostAssignment
from gradwire.topology.routing import build_routing
from gradwire.workload.program import Messages
from gradwire.workload.resolve import make_traffic

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.processes.network_interface import Track
    from gradwire.traces.trace import Trace

BYTES = COLUMNS.index("bytes")
MAX_MESSAGES = 200_000
"""Messages after which the network is rebuilt: about 130 MB of records."""


class PersistentNetwork:
    """The network of a scenario with one job, built on demand.

    Attributes
    ----------
    coupling : of the current network; None while it is not built.
    built : number of builds.
    since_ps : total time of the earlier builds; the times of traffic count from the first.
    sent : messages of the job since the last build.
    network, places, cards : the topology, and the placement of the job, once it has been built.
    """

    def __init__(self, scenario: Scenario, threads: int) -> None:
        self.scenario, self.threads, self.built, self.sent, self.since_ps = scenario, threads, 0, 0, 0
        self._traffic: list[Track] = []
        self.coupling: Coupling | None = None
        self.network: Network
        self.places: HostAssignment
        self.cards: HostCards

    @property
    def full(self) -> bool:
        """True if the network should be rebuilt."""
        return self.sent + sum(map(submitted_messages, self._traffic)) > MAX_MESSAGES

    def ready(self, trace: Trace) -> Coupling:
        """Return the network's coupling, building it if necessary. Raises TraceError, ScenarioError if the scenario
        cannot be simulated, or the job cannot send the trace."""
        from gradwire.sim.simulate import check_simulated, packet_fabric

        if self.coupling is not None:
            return self.coupling
        check_simulated(self.scenario)
        inputs = prepare_inputs(self.scenario, trace)
        network = inputs.needs.network
        routing = build_routing(network)
        check_paths(self.scenario, routing)
        fabric = packet_fabric(_reseeded(self.scenario, self.built), network, routing, self.threads)
        patience = stall_timeout_ps(self.scenario, network, routing)
        logged = bool(self.scenario.output.packet_log)  # for reports of stalls
        self.coupling = Coupling(fabric, self.scenario.host.software_latency, network.names, logged, patience)
        self.network, self.places, self.cards = network, inputs.needs.places[0], network.cards
        self.built, self.sent = self.built + 1, 0
        self._traffic = [self.coupling.play(part) for part in make_traffic(self.scenario, network, self.since_ps)]
        return self.coupling

    def close(self, now_ps: int = 0) -> None:
        """Drop the network `now_ps` after it was built, and end the engine's threads."""
        self.since_ps, self._traffic = self.since_ps + now_ps, []
        if self.coupling is not None and hasattr(self.coupling.fabric, "close"):
            self.coupling.fabric.close()
        self.coupling = None


def _reseeded(scenario: Scenario, built: int) -> Scenario:
    """Return the scenario with another seed for every build after the first."""
    return scenario if not built else scenario.model_copy(update={"seed": (scenario.seed + built * 1_000_003) % 2**31})


def check_loss_bounds(runs: Ints, numbers: Ints, sent: Messages) -> None:
    """Check messages against their loss bounds, as `gradwire.result_store.loss_bound_check` checks a whole run. `runs`:
    rows of `gradwire.result_store.missing_packets`. Raises GradwireError if a message was delivered with more loss than
    its bound."""
    if not len(runs):
        return
    lost = np.bincount(runs[:, 0] - numbers[0], weights=runs[:, BYTES], minlength=len(numbers)).astype(np.int64)
    broken = np.flatnonzero(lost > allowed_loss_per_message(sent.nbytes, sent.bound))
    if len(broken):
        first = broken[0]
        raise GradwireError(
            f"was delivered without {lost[first]} of its {sent.nbytes[first]} bytes",
            f"message {int(numbers[first])}",
            f"no more than its bound of {sent.bound[first]:g}",
        )


def missing_by_message(runs: Ints, numbers: Ints, nbytes: Ints, payload: int) -> dict[int, Flags]:
    """Return masks of missing packets by index of the message, from rows of `gradwire.result_store.missing_packets`."""
    masks: dict[int, Flags] = {}
    first = int(numbers[0]) if len(numbers) else 0
    for message, packet, packets, _, _ in runs.tolist():
        index = message - first
        mask = masks.get(index)
        if mask is None:
            mask = masks[index] = np.zeros(-(-int(nbytes[index]) // payload), dtype=np.bool_)
        mask[packet : packet + packets] = True
    return masks
