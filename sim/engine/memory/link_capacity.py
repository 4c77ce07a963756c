"""`link_capacity` computes the packets that links hold and the lookahead window, and rejects networks beyond the
engine's limits.

Does not import Numba, so that a scenario can be checked at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.scenarios.wire import MIN_FRAME, ps_per_byte
from gradwire.topology import Network

# ps; a longer window saves nothing, needs larger rings, and exceeds the sort keys of arrivals (23 bits)
MAX_WINDOW = 8_000_000
MAX_LINK_PACKETS = 0xFFFFFF
MAX_ARRIVALS = 1 << 20  # at one node in one window


@dataclass(frozen=True)
class LinkCapacity:
    """Capacities by directed link, and limits of windows.

    speed : picoseconds per byte << 16.
    rings, spills : entries of the ring, and of the ring that takes over when small packets fill it.
    window, lookahead : picoseconds.
    per_window : most packets that all links can bring in a window.
    arrivals : most packets that a node can receive in a window.
    """

    speed: Ints
    rings: Ints
    spills: Ints
    window: Ps
    lookahead: Ps
    per_window: int
    arrivals: int


def link_capacity(network: Network, longest_frame: Bytes, host_latency: Ps, window: Ps | None = None) -> LinkCapacity:
    """Return the capacities for packets of at most `longest_frame` bytes; `window` shortens the windows. Raises
    ScenarioError if a link holds more packets than the engine can count, or a node could receive too many at once."""
    speed = ps_per_byte(network.link_rate.astype(object)).astype(np.int64)
    shortest = (MIN_FRAME * speed + 65535 >> 16).astype(np.int64)
    longest = longest_frame * speed + 65535 >> 16
    lookahead = int((network.link_latency + shortest).min())
    length = min(lookahead, host_latency, MAX_WINDOW)
    if window is not None:
        length = min(length, window)
    per_window = length // shortest + 2
    spills = _powers_of_two((network.link_latency + longest + 3 * length) // shortest + 4)
    # twice what a link and three windows hold of full packets
    rings = _powers_of_two(2 * ((network.link_latency + 3 * length) // longest + 2))
    if spills.max() > MAX_LINK_PACKETS:
        worst = int(spills.argmax())
        between = " and ".join(network.names[node] for node in (network.link_src[worst], network.link_dst[worst]))
        raise ScenarioError(
            f"the cable between {between} holds more than {MAX_LINK_PACKETS / 1e6:.0f} million of the smallest packets",
            "link",
            "a smaller rate times latency",
        )
    arrivals = int(np.bincount(network.link_dst, weights=per_window).max())
    if arrivals >= MAX_ARRIVALS:
        raise ScenarioError(
            f"a node could see more than {MAX_ARRIVALS} packets within {length} ps",
            "link",
            "a smaller rate, or fewer cables at a node",
        )
    rings = np.minimum(rings, spills)
    return LinkCapacity(speed, rings, spills, Ps(length), Ps(lookahead), int(per_window.sum()), arrivals)


def _powers_of_two(counts: Ints) -> Ints:
    return (1 << np.ceil(np.log2(np.maximum(counts, 8))).astype(np.int64)).astype(np.int64)
