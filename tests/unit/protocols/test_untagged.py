"""What transports make of packets that nobody has tagged, and how large what they send back is: on the wire as their
classes, and so docs/scenario.md and docs/wire.md, say."""

from __future__ import annotations

import pytest

from gradwire.scenarios import wire
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, run_oracle
from gradwire.testing.oracle.packets import ACK, BITMAP, DATA, PROBE, STOP
from gradwire.topology import LinkSpec, star

SIMULATED = {kind: owner for kind, owner in components("transport").items() if owner.simulated}
PACKETS = 60


def sent(table):
    """What crosses the link of the sender, and that of the receiver, of a message that loses packets on its way."""
    switch = Switch(
        queues=8, shortest_first=table.wants_shortest_first, trim_threshold="12kB" if table.wants_trimming else None
    )
    network = star(2, LinkSpec(10**10, 10**6, 0.05))
    seen = run_oracle(Case(network, [table], [MessageSpec(0, 0, 1, PACKETS * table.payload)], switch)).transmissions
    first = [next(each.link for each in seen if each.packet.dst == dst) for dst in (1, 0)]
    return ([each.packet for each in seen if each.link == link] for link in first)


@pytest.mark.parametrize(
    ("kind", "ecn"), [(kind, None) for kind in SIMULATED] + [("cubic", True), ("dctcp", False), ("pias", False)]
)
def test_packet_importance_on_the_wire_matches_the_transport_class(kind, ecn):
    table = SIMULATED[kind].model_validate({"kind": kind} | ({} if ecn is None else {"ecn": ecn}))
    there, back = sent(table)
    data = [packet for packet in there if packet.kind == DATA]
    first = {packet.sequence: packet for packet in reversed(data)}
    again = [packet for packet in data if packet is not first[packet.sequence]]
    assert len(first) == PACKETS and again and back
    assert {packet.important for packet in first.values()} == {table.ecn_capable}
    assert {packet.important for packet in again} == {table.ecn_capable or table.repeats_important}
    assert {packet.important for packet in back} == {table.control_ecn_capable}
    assert all(packet.important for packet in there if packet.kind == PROBE and kind == "dlcp")


@pytest.mark.parametrize("kind", SIMULATED)
def test_control_packets_have_the_declared_sizes(kind):
    table = SIMULATED[kind].model_validate({"kind": kind})
    there, back = sent(table)
    stop = wire.SIDE_CHANNEL_BYTES if kind in ("dlcp", "ltp") else table.control_bytes
    sizes = {
        STOP: {stop},
        BITMAP: {wire.SIDE_CHANNEL_BYTES + -(-PACKETS // 8)} if kind == "dlcp" else {table.control_bytes},
    }
    for packet in back:
        assert packet.size in sizes.get(packet.kind, {table.control_bytes})
    assert {packet.size for packet in there if packet.kind == PROBE and kind == "dlcp"} <= {wire.PROBE_BYTES}
    assert (
        {packet.kind for packet in back} == {STOP}
        if not table.acknowledges
        else ACK in {packet.kind for packet in back}
    )
