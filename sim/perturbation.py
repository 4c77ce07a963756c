"""Perturbation: the same scenario with latencies a little larger, to see how much of its outcome nanoseconds decide.

Senders that start together meet at queues again and again, in an order that the smallest difference turns round; what
follows - who is dropped, who is marked, who finishes first - can be quite another run. A real network, or an emulated
one, is one of those runs. So before a difference from it means anything, one wants to know how far simulations differ
among themselves when nothing that anybody could measure has changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradwire.experiment.topology import network_of
from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.schema.network import LinkOverride
from gradwire.scenarios.wire import MAX_FRAME, serialisation_ps

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario

DRAWS = zlib.crc32(b"shaken")  # keeps these draws apart from others of the seed
SEEDS = 2**63  # as many as a scenario may have
SHARE = 0.1
"""Of the time of a full packet, by which a cable's latency grows at most (our choice): far less than one place in a
queue, and enough to turn round who comes first."""


def perturbed(scenario: Scenario, count: int) -> list[Scenario]:
    """`count` variants of a scenario in which every cable is a little longer, each by another length. Drawn from the
    scenario's seed."""
    network = network_of(scenario)
    payload = Bytes(max(transport.payload + transport.overhead for transport in scenario.transports))
    rng = np.random.default_rng([scenario.seed, DRAWS])
    variants = []
    for _ in range(count):
        overrides = []
        for cable in range(0, network.link_count, 2):
            rate, latency = Bps(int(network.link_rate[cable])), int(network.link_latency[cable])
            most = SHARE * serialisation_ps(Bytes(min(payload, MAX_FRAME)), rate)
            ends = (network.names[int(network.link_src[cable])], network.names[int(network.link_dst[cable])])
            overrides.append(
                LinkOverride.model_construct(  # figures, not text that is to be read
                    between=ends,
                    rate=rate,
                    latency=Ps(latency + int(rng.integers(1, max(2, int(most))))),
                    loss=float(network.link_loss[cable]),
                )
            )
        variants.append(scenario.model_copy(update={"link_override": tuple(overrides)}))
    return variants


def reseeded(scenario: Scenario, count: int) -> Iterator[Scenario]:
    """The scenario, and variants with the seeds that follow - behind the largest seed there is comes 0 -, each with
    cables that are a little longer as well: what the seed does not draw, such as who of many senders comes first, falls
    otherwise then."""
    yield scenario
    for more in range(1, count):
        yield perturbed(scenario.model_copy(update={"seed": (scenario.seed + more) % SEEDS}), 1)[0]
