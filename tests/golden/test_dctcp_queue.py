"""The queue that DCTCP keeps, as its authors worked it out (Alizadeh et al., SIGCOMM 2010, section 3.3 [recalled]).

N long flows of one round trip share a port that marks from K packets on. The port is busy, so what is on its way and
not in the queue is always the same: C RTT packets, and the queue is Q = N W - C RTT for windows W. The queue reaches K
where W* = (C RTT + K) / N. The news takes a round trip, in which each window grows by one packet; then all shrink by
alpha / 2. Of a cycle's packets those of that last round trip are marked, which gives alpha:

    alpha^2 (1 - alpha / 4) = (2 W* + 1) / (W* + 1)^2, about 2 / W*

    highest queue    Q_max = K + N
    amplitude        A = N (W* + 1) alpha / 2, about sqrt(2 N (C RTT + K)) / 2
    lowest queue     Q_min = K + N - A
    cycle            A / N round trips, since each window grows back by one packet in each

Between the extremes the queue climbs a packet per flow and round trip, so that its mean is half way. Two things differ
here. Windows are whole packets, so that each flow is off by up to one and the queue by up to N, half of it on
average. And no window grows in the round trip after a reduction (RFC 8257, section 3.3, by way of RFC 3168; Linux), in
which the paper's already do: a cycle is up to a round trip longer, and the marked share of its packets smaller, down to
that of

    alpha^2 / 2 (1 - alpha / 4) (W* + 1)^2 + alpha (1 - alpha / 2) (W* + 1) = W* + 1/2

whose left side counts the packets of a cycle, one round trip at the lowest window among them, times alpha.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
from measured import MS, US, Seen, watch

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.topology import LinkSpec, star

PACKET, ACK, RATE, LATENCY = 1498, 66, 10**10, 25 * US  # round trip 102.5 us: the paper's 10 Gbps and 100 us
SLOT = PACKET * 800  # ps that the port takes for a packet
BEGIN, END = 20 * MS, 80 * MS
PIPE = (2 * SLOT + 2 * ACK * 800 + 4 * LATENCY) / SLOT  # C RTT, packets: both ways, no queue


def share_marked(window: float, rest: float) -> float:
    """alpha for W*; `rest`: how many round trips windows stay at their lowest."""

    def too_large(alpha: float) -> bool:
        growing = alpha**2 / 2 * (1 - alpha / 4) * (window + 1) ** 2
        return growing + rest * alpha * (1 - alpha / 2) * (window + 1) > window + 0.5

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if too_large(middle) else (middle, high)
    return low


def long_flows(count: int, threshold: int, apart: int) -> Seen:
    """So many flows that never end, the next one `apart` later; K in packets."""
    transport = Dctcp.model_validate({"kind": "dctcp", "payload": f"{PACKET - 66}B"})

    def send(fabric):
        for n in range(count):
            fabric.send(n * apart, n, count, 10**9)

    network = star(count + 1, LinkSpec(RATE, LATENCY))
    seen = watch(network, send, END, transport, ecn_threshold=f"{threshold * PACKET}B")
    assert seen.lost == 0
    return seen


def queue(seen: Seen) -> np.ndarray:
    """Packets that wait at the port, once per slot from BEGIN to END."""
    times = np.arange(BEGIN, END, SLOT)
    come = np.sort(seen.leaving().ends())
    gone = np.sort(seen.arriving().start)
    return np.searchsorted(come, times, side="right") - np.searchsorted(gone, times, side="right")


def busy(seen: Seen) -> float:
    """Share of the time in which the port sends."""
    return len(seen.arriving().between(BEGIN, END).start) * SLOT / (END - BEGIN)


def cycles(waiting: np.ndarray) -> list[np.ndarray]:
    """The queue cut where it climbs through its mean, but at most once in one and a half empty round trips: cycles are
    longer than that, and a queue that climbs by steps may cross its mean several times on the way."""
    above = waiting > waiting.mean()
    cuts = [0]
    for climb in np.flatnonzero(~above[:-1] & above[1:]):
        if climb - cuts[-1] > 1.5 * PIPE:
            cuts.append(climb)
    return [waiting[a:b] for a, b in pairwise(cuts[1:])]


@pytest.mark.parametrize("apart", [0, 3 * US])
@pytest.mark.parametrize(("count", "threshold"), [(2, 20), (2, 40), (2, 65), (3, 40), (5, 40), (10, 40), (20, 65)])
def test_dctcp_queue_oscillation_matches_paper(count, threshold, apart):
    """Highest, lowest, mean, cycle and marks, for 2 to 20 flows around K."""
    seen = long_flows(count, threshold, apart)
    waiting = queue(seen)
    assert busy(seen) > 0.9999  # what the formulas take for granted

    window = (PIPE + threshold) / count
    alpha = share_marked(window, 0)
    highest, amplitude = threshold + count, count * (window + 1) * alpha / 2
    short_form = sqrt(2 * count * (PIPE + threshold)) / 2
    assert amplitude == pytest.approx(short_form, rel=0.15)
    lowest = highest - amplitude
    half = count / 2 + 1  # half a packet per flow, and one that the port has begun

    swings = cycles(waiting)
    assert len(swings) > 50
    assert np.mean([swing.max() for swing in swings]) == pytest.approx(highest, abs=half)
    assert np.mean([swing.min() for swing in swings]) == pytest.approx(lowest, abs=2 * half)
    assert waiting.mean() == pytest.approx((highest + lowest) / 2, abs=half)

    round_trip = PIPE + waiting.mean()  # slots
    length = np.mean([len(swing) for swing in swings]) / round_trip
    assert amplitude / count - 1 < length < amplitude / count + 2.5

    arriving = seen.arriving().between(BEGIN, END)
    assert share_marked(window, 1) - 0.02 < arriving.marked.mean() < alpha + 0.02


@pytest.mark.parametrize(("threshold", "idle"), [(12, False), (3, True)])
def test_dctcp_queue_empties_below_threshold_of_paper(threshold, idle):
    """Two flows need K + 2 > sqrt(C RTT + K). 12 packets are enough (14 > 9.9), 3 are not (5 < 9.4)."""
    lowest = threshold + 2 - sqrt(PIPE + threshold)
    assert (lowest < 0) == idle
    assert (busy(long_flows(2, threshold, 0)) < 0.9999) == idle
