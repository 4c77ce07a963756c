"""A network busy enough for threads to work together of their own accord, and for logs to fill up within a call."""

from __future__ import annotations

import pytest

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.memory.engine_memory import LOG_ENTRIES
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine
from gradwire.topology import LinkSpec, fat_tree

HOSTS = 128


@pytest.fixture(scope="module")
def case():
    """Every host of a fat-tree sends to one other; into small queues, and over links that lose a little."""
    return Case(
        fat_tree(8, LinkSpec(10**11, 200_000, 0.001)),
        [
            TcpNewReno.model_validate(
                {"kind": "tcp_newreno", "payload": "1000B", "initial_window": 200, "min_rto": "200us"}
            ),
            Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "initial_window": 200, "min_rto": "200us"}),
            Dlcp.model_validate({"kind": "dlcp", "payload": "1000B"}),
        ],
        [
            MessageSpec(0, host, (host * 37 + 5) % HOSTS, 150_000, host % 3, bound=0.02 * (host % 3 == 2))
            for host in range(HOSTS)
        ],
        Switch.model_validate({"queues": 1, "buffer": "64KiB", "ecn_threshold": "16KiB"}),
    )


@pytest.fixture(scope="module")
def alone(case):
    return run_engine(case)


def test_busy_case_fills_the_logs_more_than_once(case, alone):
    assert len(alone.transmissions) > 2 * LOG_ENTRIES
    assert len(alone.transmissions) == sum(port.packets for port in alone.ports)
    assert len(alone.drops) == sum(port.tail + port.selective + port.link_loss for port in alone.ports) > 100
    assert len(alone.arrivals) == HOSTS


@pytest.mark.parametrize("threads", [2, 3])
def test_results_do_not_depend_on_changing_thread_use(case, alone, threads):
    ways = []

    def watch(fabric):
        advance = fabric.advance.workers.advance

        def noted(alone):
            ways.append(alone)
            advance(alone)

        fabric.advance.workers.advance = noted

    assert first_difference(run_engine(case, threads=threads, prepare=watch), alone) == ""
    assert set(ways) == {True, False}, "the case is meant to be worked on both by one thread and by all"
