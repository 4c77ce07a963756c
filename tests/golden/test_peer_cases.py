"""The two cases of "Beside the peers" in sim/README.md against what arithmetic allows: bounds, and what makes up the rest."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from measured import MS, US

from gradwire.result_store.result import Result
from gradwire.scenarios.loading.load import load_scenario
from gradwire.sim.simulate import simulate

PER_BYTE = 80  # ps at 100 Gbps
FRAME, HEADERS = 4096 + 66, 66


def wire(nbytes: int) -> int:
    """Bytes on a link of a flow in packets of 4 KiB."""
    return nbytes + -(-nbytes // 4096) * HEADERS


@cache
def outcome(scenario: str, policy: str, seed: int = 1) -> Result:
    return simulate(load_scenario(scenario).variant(policy).model_copy(update={"seed": seed}))


def times(result: Result) -> np.ndarray:
    """From the start of each flow to its delivery, ps."""
    return np.array(result.messages["end_ps"]) - np.array(result.messages["start_ps"])


def total(result: Result, column: str) -> int:
    return int(np.sum(np.array(result.ports[column])))


INCAST = 32 * wire(20_000_000) * PER_BYTE + FRAME * PER_BYTE + 2 * US
"""All bytes over the receiver's link, after one packet on the first link and two latencies: 52.03 ms."""


@pytest.mark.parametrize("policy", ["slow", "deep"])
def test_lossless_incast_takes_its_serialisation_time(policy):
    """The queue never empties once it has begun, whatever the windows; the time is within ten packets of the bound."""
    result = outcome("incast-32", policy)
    assert total(result, "drops_tail") == 0
    assert INCAST <= times(result).max() < INCAST + 10 * FRAME * PER_BYTE


@pytest.mark.parametrize(("seed", "fortunate"), [(1, 3), (2, 1)])
def test_incast_with_lost_first_windows_waits_for_timeout(seed, fortunate):
    """The first windows are 32 x 10 packets, two and a half times the buffer. A few flows, by chance, have enough
    packets acknowledged behind their losses; the others lose the end of their window, which no acknowledgement
    reveals. The few have the link to themselves, 1.626 ms each; the rest of the time-out the link is idle. Timers
    start with the last acknowledgement, within the 0.1 ms that the buffer holds."""
    results = {
        wait: outcome("incast-32", policy, seed) for wait, policy in ((2, "dctcp"), (10, "rto10"), (200, "rto200"))
    }
    for wait, result in results.items():
        idle = max(0, wait * MS - fortunate * wire(20_000_000) * PER_BYTE)
        assert INCAST <= times(result).max() < INCAST + idle + 0.1 * MS
        assert times(result).max() >= INCAST + idle - 0.1 * MS
    assert times(results[200]).max() - times(results[10]).max() == pytest.approx(190 * MS, abs=US)  # but for ties
    assert np.sum(times(results[200]) < 100 * MS) == fortunate
    assert total(results[2], "drops_tail") > 100


def busiest(result: Result) -> int:
    """What the link with most bytes needs to carry them, ps."""
    return int(np.max(np.array(result.ports["bytes"]))) * PER_BYTE


def test_ecmp_permutation_takes_as_long_as_its_busiest_link():
    """Under ECMP four flows meet on one link. The last of them ends when the link has carried all four and the path
    has been crossed both ways: within 3 percent."""
    result = outcome("permutation", "ecmp")
    assert busiest(result) == pytest.approx(4 * wire(10_000_000) * PER_BYTE, rel=0.01)  # acknowledgements too
    assert 4 * wire(10_000_000) * PER_BYTE < times(result).max() < 1.03 * busiest(result)


def test_spraying_balances_links_but_dctcp_retransmits_reordered_packets():
    """All links carry the same and nothing is dropped. Yet three packets that overtake one make DCTCP retransmit it
    and halve its window. DLCP has no such rule, and ends in half the time."""
    dctcp, dlcp = (outcome("permutation", policy) for policy in ("spray", "dlcp-spray"))
    for result in (dctcp, dlcp):
        assert busiest(result) < 1.1 * wire(10_000_000) * PER_BYTE
        assert total(result, "drops_tail") == 0
        assert (times(result) >= np.array(result.flows["ideal_ps"])).all()
    assert np.sum(np.array(dctcp.messages["retransmitted"])) > 500
    assert np.sum(np.array(dlcp.messages["retransmitted"])) == 0
    assert 2 * times(dlcp).max() < times(dctcp).max()
    assert times(dlcp).max() < 1.5 * busiest(dlcp)
