"""How much room the engine needs for the packets on every link, and the limits to it: what `check` has to know as well.

Without Numba, so that a scenario can be checked at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwire.experiment.topology import Network
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.scenarios.wire import MIN_FRAME, speed_of

# ps; a longer window saves nothing, would need larger rings, and has no room in the sort keys of arrivals (23 bits)
LONGEST_WINDOW = 8_000_000
MOST_ON_A_LINK = 0xFFFFFF
MOST_ARRIVALS = 1 << 20  # at one node in one window


@dataclass(frozen=True)
class LinkRoom:
    """Per directed link: `speed` (picoseconds per byte << 16), entries of its ring and of the ring that takes over when
    small packets fill it. `window` and `lookahead` in picoseconds; `per_window`: packets that all links can bring in a
    window at most; `arrivals`: those of a node."""

    speed: Ints
    rings: Ints
    spills: Ints
    window: Ps
    lookahead: Ps
    per_window: int
    arrivals: int


def link_room(network: Network, longest_frame: Bytes, host_latency: Ps, window: Ps | None = None) -> LinkRoom:
    """The room for packets of at most `longest_frame` bytes. Times in picoseconds; `window` shortens the windows.

    Raises
    ------
    ScenarioError
        A link holds more packets than the engine can count, or a node could see too many at once.
    """
    speed = speed_of(network.link_rate.astype(object)).astype(np.int64)
    shortest = (MIN_FRAME * speed + 65535 >> 16).astype(np.int64)
    longest = longest_frame * speed + 65535 >> 16
    lookahead = int((network.link_latency + shortest).min())
    length = min(lookahead, host_latency, LONGEST_WINDOW)
    if window is not None:
        length = min(length, window)
    per_window = length // shortest + 2
    spills = _powers_of_two((network.link_latency + longest + 3 * length) // shortest + 4)
    # twice what a link and three windows hold of full packets
    rings = _powers_of_two(2 * ((network.link_latency + 3 * length) // longest + 2))
    if spills.max() > MOST_ON_A_LINK:
        worst = int(spills.argmax())
        between = " and ".join(network.names[node] for node in (network.link_src[worst], network.link_dst[worst]))
        raise ScenarioError(
            f"the cable between {between} holds more than {MOST_ON_A_LINK / 1e6:.0f} million of the smallest packets",
            "link",
            "a smaller rate times latency",
        )
    arrivals = int(np.bincount(network.link_dst, weights=per_window).max())
    if arrivals >= MOST_ARRIVALS:
        raise ScenarioError(
            f"a node could see more than {MOST_ARRIVALS} packets within {length} ps", "link",
            "a smaller rate, or fewer cables at a node",
        )  # fmt: skip
    rings = np.minimum(rings, spills)
    return LinkRoom(speed, rings, spills, Ps(length), Ps(lookahead), int(per_window.sum()), arrivals)


def _powers_of_two(counts: Ints) -> Ints:
    return (1 << np.ceil(np.log2(np.maximum(counts, 8))).astype(np.int64)).astype(np.int64)
