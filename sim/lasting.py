"""A lasting network: a scenario's, for what is played on it piece by piece by somebody who does not know the end yet.

Flows take memory for as long as the engine lives. So after some hundred thousand messages (`MOST_MESSAGES`) the network
is to be built anew, which is as if it had rested for long: state of pairs is forgotten then. Each time it draws other
random numbers.

Traffic beside the job goes on with it: its flows are those of a run, at their times, which count from when the network
was built first and while it is there; those that are under way when it is built anew are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradwire.experiment.placement import Places
from gradwire.experiment.program import Messages
from gradwire.experiment.resolve import traffic_of
from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import Cards, Network
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loss import allowed_losses
from gradwire.scenarios.missing import COLUMNS
from gradwire.sim.coupling import Coupling
from gradwire.sim.patience import patience_ps
from gradwire.sim.precheck import check_paths, find_all
from gradwire.sim.run import submitted_by

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.network_like import Track
    from gradwire.traces.trace import Trace

BYTES = COLUMNS.index("bytes")
MOST_MESSAGES = 200_000
"""Messages after which the network is built anew: about 130 MB of records."""


class Lasting:
    """The network of a scenario with one job, built when it is needed first.

    Attributes
    ----------
    coupling : of what it is at the moment; None while it is not built.
    built : how often it has been.
    since_ps : how long it had been there before it was built last: what times of traffic count by.
    sent : messages of the job since then.
    network : its topology, once it has been built. places, cards : of the job, then, too.
    """

    def __init__(self, scenario: Scenario, threads: int) -> None:
        self.scenario, self.threads, self.built, self.sent, self.since_ps = scenario, threads, 0, 0, 0
        self._traffic: list[Track] = []
        self.coupling: Coupling | None = None
        self.network: Network
        self.places: Places
        self.cards: Cards

    @property
    def full(self) -> bool:
        """Whether it is time to build it anew."""
        return self.sent + sum(map(submitted_by, self._traffic)) > MOST_MESSAGES

    def ready(self, trace: Trace) -> Coupling:
        """It, built if it is not.

        Raises
        ------
        TraceError, ScenarioError
            It cannot be simulated, or the job cannot send the trace.
        """
        from gradwire.sim.simulate import check_simulated, packet_fabric

        if self.coupling is not None:
            return self.coupling
        check_simulated(self.scenario)
        found = find_all(self.scenario, trace)
        network = found.needs.network
        routing = build_routing(network)
        check_paths(self.scenario, routing)
        fabric = packet_fabric(_reseeded(self.scenario, self.built), network, routing, self.threads)
        patience = patience_ps(self.scenario, network, routing)
        logged = bool(self.scenario.output.packet_log)  # for reports of stalls
        self.coupling = Coupling(fabric, self.scenario.host.software_latency, network.names, logged, patience)
        self.network, self.places, self.cards = network, found.needs.places[0], network.cards
        self.built, self.sent = self.built + 1, 0
        self._traffic = [self.coupling.play(part) for part in traffic_of(self.scenario, network, self.since_ps)]
        return self.coupling

    def close(self, now_ps: int = 0) -> None:
        """Forget it, so long after it was built, and end the engine's threads."""
        self.since_ps, self._traffic = self.since_ps + now_ps, []
        if self.coupling is not None and hasattr(self.coupling.fabric, "close"):
            self.coupling.fabric.close()
        self.coupling = None


def _reseeded(scenario: Scenario, built: int) -> Scenario:
    """The scenario whose network draws other numbers each time it is built, and the first time its own."""
    return scenario if not built else scenario.model_copy(update={"seed": (scenario.seed + built * 1_000_003) % 2**31})


def hold_to_bounds(runs: Ints, numbers: Ints, sent: Messages) -> None:
    """Hold messages with these numbers to the promise of bounded loss, as `gradwire.scenarios.soundness` holds a whole
    run. `runs`: rows of `gradwire.scenarios.missing`.

    Raises
    ------
    GradwireError
        One was delivered with more loss than its bound.
    """
    if not len(runs):
        return
    lost = np.bincount(runs[:, 0] - numbers[0], weights=runs[:, BYTES], minlength=len(numbers)).astype(np.int64)
    broken = np.flatnonzero(lost > allowed_losses(sent.nbytes, sent.bound))
    if len(broken):
        first = broken[0]
        raise GradwireError(
            f"was delivered without {lost[first]} of its {sent.nbytes[first]} bytes", f"message {int(numbers[first])}",
            f"no more than its bound of {sent.bound[first]:g}",
        )  # fmt: skip


def missing_by_message(runs: Ints, numbers: Ints, nbytes: Ints, payload: int) -> dict[int, Flags]:
    """Masks of what is missing of messages with these numbers, out of rows of `gradwire.scenarios.missing`."""
    found: dict[int, Flags] = {}
    first = int(numbers[0]) if len(numbers) else 0
    for message, packet, packets, _, _ in runs.tolist():
        index = message - first
        mask = found.get(index)
        if mask is None:
            mask = found[index] = np.zeros(-(-int(nbytes[index]) // payload), dtype=np.bool_)
        mask[packet : packet + packets] = True
    return found
