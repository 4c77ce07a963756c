"""The presets of TCP's rules, and what a scenario is when it is set beside a kernel."""

from __future__ import annotations

import pytest

from gradwire.protocols.transports.base import delays_acks, implementation_of
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.schema.network.tcp_rules import rules_of, uses_modern_rules


def table(**settings):
    return TcpNewReno.model_validate({"kind": "tcp_newreno", **settings})


def test_classic_rules_use_base_class_and_modern_rules_do_not():
    assert implementation_of(TcpNewReno, table()) is TcpNewReno
    assert implementation_of(TcpNewReno, table(recovery="prr", delayed_acks="1ms")) is TcpNewReno
    for rule in (
        {"preset": "linux"}, {"frto": True}, {"tail_probes": True}, {"loss_detection": "rack"}, {"pacing": True},
        {"slow_start": "hystart++"}, {"timers": "ticks"}, {"small_queues": True},
    ):  # fmt: skip
        assert implementation_of(TcpNewReno, table(**rule)) is not TcpNewReno, rule


def test_explicit_rules_override_the_preset():
    rules = rules_of(table(preset="linux", frto=False, min_rto="10ms").model_dump())
    assert (rules["frto"], rules["loss_detection"], rules["delayed_acks"]) == (False, "rack", 5 * 10**9)
    assert uses_modern_rules(rules) and delays_acks(table(preset="linux"))
    assert rules_of({"kind": "cubic", "preset": "linux", "min_rto": 10**12})["slow_start"] == "hystart"


def test_kernel_comparison_uses_linux_preset_unless_rules_are_set():
    def preset(*set_: str) -> str:
        return load_scenario("agreement", policy="dctcp", set=set_).with_kernels_tcp().transports[0].preset

    assert preset() == "linux"
    assert preset('transport.preset="classic"') == "classic"
    assert preset("transport.frto=false") == "classic"
    assert preset('emulation.loss_recovery="classic"') == "classic"
    other = load_scenario("agreement", policy="star-dlcp")
    assert other.with_kernels_tcp().transports == other.transports


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        ([], True), (['emulation.host_queue="packet"'], False),
        (['emulation.host_queue="packet"', "transport.small_queues=true"], True),
        (['emulation.host_queue="packet"', 'transport.preset="linux"'], False),
        (['transport.preset="linux"', "transport.small_queues=false"], False), (['transport.preset="classic"'], False),
    ],
)  # fmt: skip
def test_kernel_comparison_uses_small_queues_unless_overridden(given, waits):
    found = load_scenario("agreement", policy="dctcp", set=given).with_kernels_tcp().transports[0]
    assert rules_of(found.model_dump())["small_queues"] is waits


def test_kernel_comparison_uses_kernel_max_rto_unless_set():
    """Linux has 120 s (TCP_RTO_MAX); the classic rules have 1 s."""
    second = 10**12
    assert (table().max_rto, table(preset="linux").max_rto) == (second, 120 * second)
    assert table(preset="linux", max_rto="3s").max_rto == 3 * second
    found = load_scenario("agreement", policy="dctcp")
    assert found.with_kernels_tcp().transports[0].max_rto == 120 * second
    given = load_scenario("agreement", policy="dctcp", set=["transport.max_rto=2s"])
    assert given.with_kernels_tcp().transports[0].max_rto == 2 * second


def test_min_rto_below_two_ticks_needs_exact_timers():
    with pytest.raises(ScenarioError, match="two ticks"):
        load_scenario("agreement", policy="dctcp", set=["transport.preset=linux", "transport.min_rto=1ms"])
    found = load_scenario("agreement", policy="dctcp", set=["transport.min_rto=1ms"]).with_kernels_tcp().transports[0]
    assert (found.preset, found.timers) == ("linux", "exact")


def test_user_subclass_cannot_use_tcp_presets():
    class Mine(TcpNewReno):
        """A user's."""

    settings = table().model_dump() | {"kind": "mine:Mine"}
    assert Mine.variant(settings) is Mine
    with pytest.raises(ScenarioError, match="rules of its own"):
        Mine.variant(settings | {"preset": "linux"})
