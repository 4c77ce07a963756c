"""When a sender knows that its message has arrived: the fabric tells it on demand, and a scheduler's credit waits for it."""

from __future__ import annotations

import pytest
from ideal_fabric import Delivery
from part_cases import burst
from sim_cases import make_trace, ps_job, scenario
from transport_bench import US, star_of

from gradwire.scenarios.errors import StallError
from gradwire.scenarios.schema.network.network import Switch
from gradwire.scenarios.wire import DLCP_ACK_BYTES, TCP_OVERHEAD, UDP_OVERHEAD
from gradwire.sim.engine.events import Delivery as Delivered
from gradwire.sim.engine.events import Settled
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.processes.coupling import Coupling
from gradwire.sim.processes.message import Message
from gradwire.sim.simulate import simulate
from gradwire.testing import transport
from gradwire.topology.routing import build_routing

BYTE = 80  # ps on a link of 100 Gbps


def fabric_of(*tables, loss=0.0, **more):
    network = star_of(5, loss=loss)
    return Fabric(network, build_routing(network), switch=Switch(buffer="1MB"), transports=list(tables), **more)


def events_of(fabric, until=10**12):
    """(what, message, time) of everything it tells."""
    found = []
    while not fabric.idle and fabric.now < until:
        found += [(type(each), each.message, each.time_ps) for each in fabric.run(until)]
    fabric.close()
    return found


@pytest.mark.parametrize("kind", ["dlcp", "dctcp", "tcp_newreno"])
def test_sender_settles_one_acknowledgement_after_delivery(kind):
    """The reverse path is idle: 66 bytes cross two links of 1 us."""
    fabric = fabric_of(transport(kind))
    fabric.send(0, 1, 0, 100_000, settled=True)
    (what, _, delivered), (then, message, settled) = events_of(fabric)
    assert (what, then, message) == (Delivered, Settled, 0)
    assert settled == delivered + 2 * (TCP_OVERHEAD * BYTE + US)


def test_settled_events_come_only_for_requested_messages():
    fabric = fabric_of(transport("dlcp"))
    for number in range(6):
        fabric.send(0, 1 + number % 3, 0, 20_000, settled=number % 2 == 1)
    found = events_of(fabric)
    assert sorted(message for what, message, _ in found if what is Settled) == [1, 3, 5]
    assert sorted(message for what, message, _ in found if what is Delivered) == list(range(6))


def test_fabric_stops_within_host_latency_of_settled_event():
    fabric = fabric_of(transport("dlcp"), host_latency_ps=US // 2)
    fabric.send(0, 1, 0, 100_000, settled=True)
    told = []
    while not fabric.idle:
        for each in fabric.run(10**12):
            told.append(type(each))
            assert fabric.now <= each.time_ps + US // 2
    assert told == [Delivered, Settled]
    fabric.close()


@pytest.mark.parametrize("kind", ["dlcp", "dctcp", "ltp", "ndp", "constant_rate", "dcqcn", "swift", "pfabric"])
def test_every_transport_settles_all_messages_over_lossy_links(kind):
    more = {"min_rto": "200us"} if kind == "dctcp" else {}
    network = star_of(5, loss=0.05)
    needs = {"ndp": {"trim_threshold": "100kB"}, "pfabric": {"shortest_first": True}}
    switch = Switch(buffer="1MB", **needs.get(kind, {}))
    fabric = Fabric(network, build_routing(network), switch=switch, transports=[transport(kind, **more)])
    for number in range(80):
        fabric.send(0, 1 + number % 4, 0, 30_000, settled=True)
    found = events_of(fabric, until=2 * 10**12)
    times = {(what, message): time for what, message, time in found}
    assert len(times) == len(found) == 160
    gaps = [times[Settled, number] - times[Delivered, number] for number in range(80)]
    assert min(gaps) >= 2 * US
    assert max(gaps) > 10 * US  # what told it was lost


# --- who waits for it ----------------------------------------------------------------------------------------


class Scripted:
    """Delivers message n at `ends[n]` and lets its sender know at `known[n]`, if it was asked to."""

    stalled = deadlock = ""

    def __init__(self, ends, known):
        self.ends, self.known = ends, known
        self.now = self.count = 0
        self._open = []

    @property
    def idle(self):
        return not self._open

    def send(self, at_ps, src, dst, nbytes, *, settled=False, **_):
        number = self.count
        self.count += 1
        self._open.append(Delivery(number, self.ends[number], 1, 0))
        if settled and self.known[number] is not None:
            self._open.append(Settled(number, self.known[number]))
        return number

    def run(self, until_ps):
        due = [each.time_ps for each in self._open if each.time_ps < until_ps]
        until_ps = min([until_ps, *(time + 1 for time in due)])
        found = [each for each in self._open if each.time_ps < until_ps]
        self._open = [each for each in self._open if each not in found]
        self.now = until_ps
        return found[::-1]


def message(log, size=1):
    made = Message("j", "push", 0, 0, 0, 0, 1, size, 0, 0.0, True, lambda each: log.append(("arrived", each.number)))
    return made


def test_credit_returns_when_the_sender_settles():
    """The credit of four is used at once; the fifth message starts when the first is settled."""
    coupling = Coupling(Scripted([100, 200, 300, 400, 950], [500, 450, 700, 800, 960]), 5, ["a", "b"])
    track = coupling.play(burst([1] * 5, [0] * 5, 4))
    coupling.run(lambda: not track.undelivered)
    assert track.steps[0].started.tolist() == [5, 5, 5, 5, 455]


def test_settled_event_precedes_delivery_at_equal_time():
    """The sender settles before the receiver's job reacts, so a reply finds the credit returned."""
    log = []
    coupling = Coupling(Scripted([100], [100]), 5, ["a", "b"])
    each = message(log)
    each.settled = lambda _: log.append("settled")
    coupling.send(each)
    coupling.run(lambda: len(log) == 2)
    assert log == ["settled", ("arrived", 0)]


def test_coupling_continues_until_senders_settle():
    """All messages are delivered; one settled event is pending, after which the sender sends more."""
    coupling = Coupling(Scripted([10, 20, 30, 40, 5000], [3000, 3001, 3002, 3003, 6000]), 5, ["a", "b"])
    track = coupling.play(burst([1] * 5, [0] * 5, 4))
    assert coupling.run(lambda: not track.undelivered)


def test_stall_error_names_senders_that_never_settle():
    coupling = Coupling(Scripted([10, 20, 30, 40], [None] * 4), 5, ["a", "b"])
    coupling.play(burst([1] * 5, [0] * 5, 4))
    with pytest.raises(StallError, match=r"message 3 of .* delivered, but its sender does not know"):
        coupling.run(lambda: False)


@pytest.mark.parametrize("latency", [50 * US, 100 * US])
def test_layer_order_releases_fifth_partition_when_first_settles(latency):
    """Of five partitions of 25 packets to a distant server, four are sent at once. The fifth follows when the 66-byte
    Stop of the first arrival is back at the worker."""
    trace, software = make_trace([[125_000]]), 200 * US
    job = ps_job(1, order="layer", exchange={"partition": "100kB"})
    host = {"software_latency": f"{software // US}us"}
    table = scenario(job, transport="dlcp", host=host, link={"rate": "100Gbps", "latency": f"{latency // US}us"})
    rows = simulate(table, trace).messages.to_pylist()
    ends = [row["end_ps"] for row in rows if row["kind"] == "push"]
    assert len(ends) == 5 and not any(row["retransmitted"] for row in rows)
    heard = min(ends) + 2 * (TCP_OVERHEAD * BYTE + latency)
    last = 100_000 - 24 * 4096 + UDP_OVERHEAD
    alone = (24 * (4096 + UDP_OVERHEAD) + last + last) * BYTE + 2 * latency
    # acknowledgements of the first pulls, which come at the same time, go first
    assert 0 <= max(ends) - (heard + software + alone) <= 100 * DLCP_ACK_BYTES * BYTE < US
