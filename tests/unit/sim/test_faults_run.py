"""Faults of a scenario: what is refused, what overlapping ones come to, and what they do to flows and jobs."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sim_cases import MS, US, Ideal, make_trace, ring_job, rows, scenario

import gradwire.sim.faults
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.scenarios.errors import ScenarioError, StallError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.network.network import Switch
from gradwire.scenarios.schema.scenario import AnyFault
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.engine.scheduled_actions import Schedule
from gradwire.sim.faults import Faults
from gradwire.sim.preparation import check_variants
from gradwire.sim.simulate import simulate
from gradwire.topology import LinkSpec, leaf_spine, rail, star
from gradwire.topology.routing import build_routing

LINK = LinkSpec(10**11, US)
BYTE = 80  # picoseconds at 100 Gbps
FRAME = BYTE * (4096 + 66)
DOWN = {"kind": "link_down", "between": ["leaf0", "spine0"]}


def tables(*faults: dict[str, Any]) -> list[Any]:
    return [TypeAdapter(AnyFault).validate_python(fault) for fault in faults]


def case(*faults: dict[str, Any], **fields: Any) -> Any:
    """Sixteen hosts on four leaves and two spines; every host sends 1 MB to the one two leaves on."""
    return build_scenario({
        "name": "case",
        "topology": {"kind": "leaf_spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 2},
        "switch": {"ecn_threshold": "96KiB"},
        "transport": {"kind": "dctcp", "min_rto": "200us", "max_rto": "5ms"},
        "traffic": [{"name": "t", "kind": "permutation", "shift": 8, "size": "1MB"}],
        "fault": list(faults),
        **fields,
    })  # fmt: skip


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({**DOWN, "at": "2ms", "until": "2ms"}, "until: is not after at"),
        ({"kind": "link_down", "at": "1ms", "between": ["leaf0"]}, "between"),
        ({**DOWN}, "at"),
        ({"kind": "host_paused", "at": "1ms", "host": "h0"}, "until"),
        ({"kind": "host_slow", "at": "1ms", "host": "h0", "factor": 1}, "factor"),
        ({"kind": "gray_loss", "at": "1ms", "between": ["h0", "leaf0"], "loss": 1.5}, "loss"),
        ({"kind": "link_degraded", "at": "1ms", "between": ["h0", "leaf0"], "rate": "999bps"}, "is below 1kbps"),
        ({"kind": "meteor", "at": "1ms"}, "kind"),
        ({"kind": "switch_down", "at": "1ms", "switch": "leaf0", "noticed_after": "-1ms"}, "noticed_after"),
    ],
)  # fmt: skip
def test_invalid_fault_tables_are_rejected(fault, says):
    with pytest.raises(ScenarioError, match=says):
        case(fault)


def test_check_names_all_unknown_nodes_and_links_of_faults():
    made = case(
        {"kind": "link_down", "at": "1ms", "between": ["leaf0", "spine9"]},
        {"kind": "link_down", "at": "1ms", "between": ["h0", "spine0"]},
        {"kind": "switch_down", "at": "1ms", "switch": "h3"},
        {"kind": "switch_down", "at": "1ms", "switch": "leaf9"},
        {"kind": "host_paused", "at": "1ms", "until": "2ms", "host": "h99"},
        {"kind": "host_slow", "at": "1ms", "host": "leaf0", "factor": 2},
        {"kind": "link_degraded", "at": "1ms", "between": ["h0", "leaf0"], "rate": "400Gbps"},
    )
    with pytest.raises(ScenarioError) as error:
        check_variants([made])
    said = str(error.value)
    for number, what in enumerate(
        (
            'between: there is no such node (got "spine9")',
            'between: there is no such link (got "h0 - spine0")',
            'switch: is a host (got "h3")',
            'switch: there is no such node (got "leaf9")',
            'host: there is no such host (got "h99")',
            'host: there is no such host (got "leaf0")',
            'rate: is above that of the cable (got "400Gbps")',
        )
    ):
        assert f"fault[{number}].{what}" in said, said
    check_variants([case({**DOWN, "at": "1ms"})])


# --- what overlapping faults come to ----------------------------------------------------------------------------------


class Recorder:
    """A fabric without packets: what the network is like after all that has been done to it."""

    def __init__(self) -> None:
        self.agenda, self.control = Schedule(), self
        self.down: set[int] = set()
        self.still: set[int] = set()
        self.avoided: Any = frozenset()
        self.rates: dict[int, int] = {}
        self.losses: dict[int, float] = {}

    def cut(self, link: int, now: int) -> None:
        self.down.add(link)

    def mend(self, link: int, now: int) -> None:
        self.down.discard(link)

    def set_rate(self, link: int, rate: int) -> None:
        self.rates[link] = rate

    def set_loss(self, link: int, loss: float) -> None:
        self.losses[link] = loss

    def stop_host(self, host: int) -> None:
        self.still.add(host)

    def resume_host(self, host: int, now: int) -> None:
        self.still.discard(host)

    def reroute(self, routing: Any) -> None:
        self.avoided = routing


NETWORK = leaf_spine(2, 2, 2, LINK)
CABLES = [["leaf0", "spine0"], ["h0", "leaf0"], ["spine1", "leaf1"]]


@st.composite
def some_faults(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Faults of a few cables, switches and hosts at a few times, so that they overlap."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, 9))
        until = draw(st.sampled_from((None, at + 1, at + 2, at + 5)))
        fault: dict[str, Any] = {"at": f"{at}us"} | ({} if until is None else {"until": f"{until}us"})
        kind = draw(st.sampled_from(("link_down", "switch_down", "link_degraded", "gray_loss", "host_paused")))
        if kind in ("link_down", "link_degraded", "gray_loss"):
            fault |= {"between": draw(st.sampled_from(CABLES)), "one_way": draw(st.booleans())}
        match kind:
            case "switch_down":
                fault["switch"] = draw(st.sampled_from(("spine0", "leaf1")))
            case "link_degraded":
                fault["rate"] = draw(st.sampled_from(("1Gbps", "40Gbps")))
            case "gray_loss":
                fault["loss"] = draw(st.sampled_from((0.1, 0.2)))
            case "host_paused":
                fault |= {"host": draw(st.sampled_from(("h0", "h1"))), "until": f"{until or at + 3}us"}
        if kind in ("link_down", "switch_down"):
            fault["noticed_after"] = f"{draw(st.integers(0, 4))}us"
        found.append({"kind": kind, **fault})
    return found


@given(some_faults())
def test_network_state_equals_combination_of_active_faults(faults):
    made = Faults(tables(*faults), NETWORK)
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradwire.sim.faults, "build_routing", lambda _, without: frozenset(without))
        made.schedule(recorder)
        for time in range(0, 20 * US, US // 2):
            recorder.agenda.act(time, lambda: 0)
            expect(recorder, made, time)


def expect(found: Recorder, made: Faults, time: int) -> None:
    """The same, fault by fault, from the tables alone."""

    def lasts(table: Any, delay: int = 0) -> bool:
        return table.at + delay <= time and (table.until is None or time < table.until + delay)

    down, avoided, still = set(), set(), set()
    rates: dict[int, int] = {}
    losses: dict[int, float] = {}
    for table in made.tables:
        if table.kind == "switch_down":
            links = {n for n in range(NETWORK.link_count) if table.switch in NETWORK.link_name(n).split("->")}
        elif table.kind != "host_paused":
            a, b = table.between
            names = {f"{a}->{b}"} | (set() if table.one_way else {f"{b}->{a}"})
            links = {n for n in range(NETWORK.link_count) if NETWORK.link_name(n) in names}
        if table.kind in ("link_down", "switch_down"):
            down |= links if lasts(table) else set()
            avoided |= links if lasts(table, table.noticed_after) else set()
        elif lasts(table):
            if table.kind == "host_paused":
                still.add(NETWORK.index[table.host])
            for link in links if table.kind == "link_degraded" else ():
                rates[link] = min(rates.get(link, 10**11), table.rate)
            for link in links if table.kind == "gray_loss" else ():
                losses[link] = max(losses.get(link, 0.0), table.loss)
    assert (found.down, found.still, set(found.avoided)) == (down, still, avoided)
    for link in range(NETWORK.link_count):
        assert found.rates.get(link, 10**11) == rates.get(link, 10**11)
        assert found.losses.get(link, 0.0) == losses.get(link, 0.0)


# --- cables and switches ----------------------------------------------------------------------------------------------


def test_no_link_down_drops_after_reroute():
    """When routes change, packets towards the cut cable are at most two hops away from it. First windows last longer
    than that, so senders do not fall silent before."""
    transport = {"kind": "dctcp", "min_rto": "200us", "max_rto": "5ms", "initial_window": 250}
    made = case({**DOWN, "at": "20us", "noticed_after": "30us", "until": "3ms"}, transport=transport)
    result = simulate(made)
    drops = [row for row in rows(result.drops) if row["cause"] == "link_down"]
    assert {row["port"] for row in drops} == {"leaf0->spine0", "spine0->leaf0"}
    assert 20 * US < min(row["time_ps"] for row in drops)
    assert 45 * US < max(row["time_ps"] for row in drops) < 50 * US + 4 * US + 512 * 1024 * BYTE
    assert result.summary["totals"]["messages_under_way"] == 0 and not check_loss_invariant(result)
    again = simulate(made, threads=2)
    for name in ("messages", "drops", "ports"):
        assert getattr(again, name).equals(getattr(result, name))
    assert again.summary == result.summary
    assert sum(row["packets"] for row in rows(result.ports)) == result.timing["packet_hops"]


def test_flows_reroute_around_failed_switch():
    result = simulate(case({"kind": "switch_down", "at": "20us", "switch": "spine1", "noticed_after": "100us"}))
    assert result.summary["totals"]["messages_under_way"] == 0
    causes = Counter(row["cause"] for row in rows(result.drops))
    assert causes["link_down"] > 20 and not causes["no_route"]


def test_packets_to_unreachable_hosts_are_dropped_until_repair():
    """Routing has no path, so switches drop the packets where they notice; traffic waits for the repair."""
    fault = {"kind": "switch_down", "at": "20us", "switch": "leaf0", "noticed_after": "10us"}
    mended = simulate(case({**fault, "until": "2ms"}))
    assert mended.summary["totals"]["messages_under_way"] == 0
    lost = Counter((row["cause"], row["port"].split("->")[0]) for row in rows(mended.drops))
    assert lost["no_route", "leaf2"] > 4
    ports = rows(mended.ports)
    assert sum(row["drops_no_route"] for row in ports) == sum(
        n for (cause, _), n in lost.items() if cause == "no_route"
    )
    ended = simulate(case(fault, duration="4ms"))
    assert ended.summary["totals"]["messages_under_way"] == 8  # to and from its four hosts


def test_job_cut_off_by_permanent_fault_stalls():
    job = {"job": [{"name": "j", "trace": "none", "iterations": 1, **ring_job(16)}], "traffic": []}
    with pytest.raises(StallError, match="no new data has arrived anywhere for"):
        simulate(
            case({"kind": "switch_down", "at": "10us", "switch": "leaf0"}, **job),
            make_trace([[400_000]], forward=US, backward=US),
        )


# --- fabrics of a few messages ----------------------------------------------------------------------------------------


def fabric(network: Any, *faults: dict[str, Any], **options: Any) -> Fabric:
    transport = Dctcp.model_validate({"kind": "dctcp", "min_rto": "100ms", "max_rto": "200ms"})
    made = Fabric(network, build_routing(network), switch=Switch(), transports=[transport], faults=True, **options)
    Faults(tables(*faults), network).schedule(made)
    return made


def ends(made: Fabric, until: int = 10**12) -> list[int]:
    """When the messages were delivered, by number."""
    found: dict[int, int] = {}
    while made.now < until and made.undelivered:
        found |= {delivery.message: delivery.time_ps for delivery in made.run(until)}
    made.close()
    return [found.get(number, -1) for number in range(made.flows.book.count)]


def test_degraded_link_delays_packets_by_its_rate():
    """Ten packets cross one switch to a link at a tenth of its rate. The last packet starts there when nine others
    have left. After the fault the times are as before."""
    network = star(2, LINK)
    fault = {"kind": "link_degraded", "at": "0us", "until": "1ms", "between": ["s0", "h1"], "rate": "10Gbps"}
    made = fabric(network, {**fault, "one_way": True})
    made.send(0, 0, 1, 10 * 4096)
    made.send(2 * MS, 0, 1, 10 * 4096)
    slow, usual = ends(made)
    assert slow == 2 * US + FRAME + 10 * 10 * FRAME
    assert usual - 2 * MS == 2 * US + 11 * FRAME


def test_resumed_host_processes_deferred_arrivals_and_starts():
    """No packet is lost. Arrivals during the pause are delivered at the resume time, and deferred messages start
    then."""
    made = fabric(star(3, LINK), {"kind": "host_paused", "at": "5us", "until": "1ms", "host": "h1"})
    made.send(4 * US, 0, 1, 3 * 4096)
    made.send(7 * US, 1, 2, 4096)
    made.send(8 * US, 0, 2, 4096)
    made.send(2 * MS, 0, 1, 4096)
    alone = 2 * US + 2 * FRAME
    assert ends(made) == [MS, MS + alone, 8 * US + alone, 2 * MS + alone]
    assert not made.drop_log().size


def test_host_pause_stops_all_nics_of_a_host():
    network = rail(2, 2, 0, LINK)
    made = fabric(network, {"kind": "host_paused", "at": "1us", "until": "1ms", "host": "h1"})
    cards = network.cards.first.tolist()
    for card in (0, 1):
        made.send(2 * US, cards[0] + card, cards[1] + card, 4096)
    assert ends(made) == [MS, MS]


def test_link_fault_of_one_nic_leaves_other_nics_working():
    network = rail(2, 2, 0, LINK)
    made = fabric(network, {"kind": "link_down", "at": "1us", "between": ["h1.nic0", "rail0_0"]})
    cards = network.cards.first.tolist()
    for card in (0, 1):
        made.send(2 * US, cards[0] + card, cards[1] + card, 4096)
    assert ends(made, 50 * MS) == [-1, 2 * US + 2 * US + 2 * FRAME]
    with pytest.raises(ScenarioError, match="no such node"):
        Faults(tables({"kind": "link_down", "at": "1us", "between": ["h1", "rail0_0"]}), network)


@pytest.mark.slow
def test_gray_loss_drops_its_share_only_during_the_fault():
    """Each of two cables carries 20,000 packets and loses a tenth, independently. That is 2000 +- 5 * sqrt(20000 *
    0.1 * 0.9) = 2000 +- 212."""
    gray = {"kind": "gray_loss", "at": "1ms", "until": "9ms", "loss": 0.1, "one_way": True}
    made = fabric(star(4, LINK), *({**gray, "between": [f"h{n}", "s0"]} for n in (0, 1)))
    for start in (0, 2 * MS, 10 * MS):
        for n in range(20_000 if start == 2 * MS else 1000):
            for src in (0, 1):
                made.send(start + n * 200_000, src, src + 2, 100)
    ends(made, 12 * MS)
    log = made.drop_log()
    lost = [set((log[log[:, 1] & 0xFFFFFFFF == link, 0]).tolist()) for link in made.network.up_link[:2].tolist()]
    for times in lost:
        assert 2 * MS <= min(times) and max(times) < 9 * MS
        assert abs(len(times) - 2000) < 212
    both = len(lost[0] & lost[1])
    assert both < 300  # 200 of 20,000 by chance


# --- slow hosts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_slow_host_delays_the_whole_job(factor):
    """The forward pass of iteration 1 begins during the fault and takes `factor` times as long. The backward pass
    begins after it. The ring waits for this host; data that the other hosts have sent by then may save some of the
    ring's own time."""
    trace = make_trace([[1000]], forward=MS, backward=MS)
    job = ring_job(3, iterations=4)
    usual = rows(simulate(scenario(job), trace, fabric=Ideal()).iterations)
    ring = usual[0]["end_ps"] - 2 * MS
    span = usual[1]["start_ps"] - usual[0]["start_ps"]
    fault = {"kind": "host_slow", "host": "h1", "factor": factor, "at": f"{span // 2}ps", "until": f"{span + US}ps"}
    slow = rows(simulate(scenario(job, fault=[fault]), trace, fabric=Ideal()).iterations)
    more = round((factor - 1) * MS)
    for one, other in zip(usual, slow, strict=True):
        later = more * (one["iteration"] >= 1)
        assert 0 <= one["end_ps"] + later - other["end_ps"] < ring


def test_documentation_example_of_faults_runs():
    page = Path(__file__).resolve().parents[3] / "docs" / "faults.md"
    (example,) = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    made = build_scenario(tomllib.loads(example))
    check_variants([made])
    result = simulate(made)
    assert result.summary["totals"]["finished"] and "link_down" in result.drops["cause"].to_pylist()
