"""Makes variants of a scenario with slightly longer cables, or other seeds too, to show how far chance decides
outcomes.

Senders that start together meet at queues again and again, in an order that the smallest difference can reverse; the
drops, marks and finishing order that follow may be quite different. A real or emulated network is one such run, so a
difference from it means something only beside the spread of simulations that differ by nothing measurable.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.schema.network.network import LinkOverride
from gradwire.scenarios.wire import MAX_FRAME, serialisation_ps
from gradwire.topology import network_of

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario

RNG_STREAM = zlib.crc32(b"shaken")  # stream of these draws, separate from others of the same seed
SEED_COUNT = 2**63  # seeds that a scenario may have
MAX_LATENCY_SHARE = 0.1
"""Largest growth of a cable's latency, as a share of a full packet's time (our choice): far less than one position in a
queue, yet enough to change the order of arrivals."""


def perturbed(scenario: Scenario, count: int) -> list[Scenario]:
    """Return `count` variants of a scenario with slightly longer cables, drawn from its seed."""
    network = network_of(scenario)
    payload = Bytes(max(transport.payload + transport.overhead for transport in scenario.transports))
    rng = np.random.default_rng([scenario.seed, RNG_STREAM])
    variants = []
    for _ in range(count):
        overrides = []
        for cable in range(0, network.link_count, 2):
            rate, latency = Bps(int(network.link_rate[cable])), int(network.link_latency[cable])
            most = MAX_LATENCY_SHARE * serialisation_ps(Bytes(min(payload, MAX_FRAME)), rate)
            ends = (network.names[int(network.link_src[cable])], network.names[int(network.link_dst[cable])])
            overrides.append(
                LinkOverride.model_construct(  # numbers, so no text has to be parsed
                    between=ends,
                    rate=rate,
                    latency=Ps(latency + int(rng.integers(1, max(2, int(most))))),
                    loss=float(network.link_loss[cable]),
                )
            )
        variants.append(scenario.model_copy(update={"link_override": tuple(overrides)}))
    return variants


def reseeded_variants(scenario: Scenario, count: int) -> Iterator[Scenario]:
    """Yield the scenario, then variants with the following seeds (modulo `SEED_COUNT`) and slightly longer cables. The
    cables change because the seed does not draw everything, such as which of many senders comes first."""
    yield scenario
    for more in range(1, count):
        yield perturbed(scenario.model_copy(update={"seed": (scenario.seed + more) % SEED_COUNT}), 1)[0]
