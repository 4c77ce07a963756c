"""`estimate_cost` predicts packet-hops, seconds and memory of a simulation before it runs.

Data packets of an iteration follow from its messages, and hops from the routes; every packet is acknowledged. Losses,
retransmissions and probes are left out. Speeds are those measured on one core (benchmarks/README.md); a busy machine is
slower. Iterations that fast-forward skips count as simulated.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import NamedTuple

import numpy as np

from gradwire.jit.limits import LOADED_MESSAGE_BYTES
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.preparation import SimulationInputs
from gradwire.topology.base_rtt import MAX_NODES
from gradwire.topology.routing import Routing, build_routing
from gradwire.workload.message_count import CountedJob, loaded_iterations
from gradwire.workload.prerequisites import make_jobs
from gradwire.workload.program import ProgramPart, Step
from gradwire.workload.resolve import make_traffic

SPEEDS = ((128, 25e6), (1024, 20e6), (8192, 8.5e6), (65_536, 6.5e6))
"""Packet-hops per second of one core, by hosts [measured]."""
BASE_BYTES, HOST_BYTES, ROW_BYTES = 150e6, 20e3, 200.0
"""Memory of Python and an engine, of a host, and of a message's row in the Result [measured]."""
MOST_MESSAGES = 500_000
"""Messages of an iteration, or of traffic, that are counted (our choice: a second or two)."""


class RunCost(NamedTuple):
    """Cost of one run. `is_lower_bound` : traffic has no end, or more flows than are counted."""

    packet_hops: int
    messages: int
    seconds: float
    memory_bytes: float
    is_lower_bound: bool = False


def estimate_cost(scenario: Scenario, inputs: SimulationInputs) -> RunCost | None:
    """Return the cost of a run; None if the network or an iteration is too large to be counted quickly."""
    needs = inputs.needs
    network = needs.network
    if network.node_count > MAX_NODES:
        return None
    for number, (trace, places) in enumerate(zip(needs.traces, needs.places, strict=True)):
        counted = CountedJob.of(scenario, number, trace, places, network.cards)
        if (counted.messages(counted.job) or 0) > MOST_MESSAGES:
            return None
    routing = build_routing(network)
    hops = messages = loaded = 0
    is_lower_bound = False
    for job in make_jobs(scenario, needs):
        step = next(iter(islice(job.part.steps(), min(1, job.table.iterations - 1), None)))
        hops += _hops(scenario, job.part, step, routing) * job.table.iterations
        messages += len(step.messages) * job.table.iterations
        loaded += len(step.messages) * loaded_iterations(job.table)
    for part in make_traffic(scenario, network):
        flows = 0
        for step in part.steps():
            hops += _hops(scenario, part, step, routing)
            flows += len(step.messages)
            if flows > MOST_MESSAGES:
                is_lower_bound = True
                break
        messages += flows
    memory = BASE_BYTES + HOST_BYTES * network.host_count + LOADED_MESSAGE_BYTES * loaded + ROW_BYTES * messages
    return RunCost(hops, messages, hops / _speed(network.host_count), memory, is_lower_bound)


def _hops(scenario: Scenario, part: ProgramPart, step: Step, routing: Routing) -> int:
    """Return the packet-hops of a step, with acknowledgements."""
    transport = scenario.transports[part.table.transport]
    rows = step.messages
    packets = -(-np.maximum(rows.nbytes, 1) // transport.payload)
    start, end = routing.edge_of[rows.src], routing.edge_of[rows.dst]
    links = np.full(len(rows.src), 2, dtype=np.int64)
    for edge in np.unique(end).tolist():
        chosen = end == edge
        links[chosen] += np.maximum(routing.distance(start[chosen], edge), 0)
    answers = -(-packets // getattr(transport, "ack_every", 1))
    return int(((packets + answers) * links).sum())


def _speed(hosts: int) -> float:
    """Return packet-hops per second, between the measured sizes by the logarithm of the hosts."""
    sizes = [size for size, _ in SPEEDS]
    at = bisect_left(sizes, hosts)
    if at in (0, len(SPEEDS)):
        return SPEEDS[min(at, len(SPEEDS) - 1)][1]
    (low, fast), (high, slow) = SPEEDS[at - 1 : at + 1]
    return float(fast + (slow - fast) * np.log(hosts / low) / np.log(high / low))
