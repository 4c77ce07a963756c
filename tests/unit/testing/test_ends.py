"""`FlowHarness` with classes that are no transports, or only half of one: one message says what is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from numba import njit
from pydantic import model_validator

from gradwire.protocols.transports.constant_rate import ConstantRate
from gradwire.protocols.transports.roce.timely import Timely
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.base import single_mistake
from gradwire.testing import FlowHarness


class NoData(ConstantRate):
    """It says that it has no receiver."""

    on_data = None  # type: ignore[assignment]


class Bare:
    """It has everything of a transport but the function that takes a data packet."""


for _name in dir(ConstantRate):
    if not _name.startswith("__") and _name != "on_data":
        setattr(Bare, _name, getattr(ConstantRate, _name))


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        (NoData, "'NoData' has no on_data"),
        (Bare, "'Bare' has no on_data"),
        (object, "'object' has no control_bytes, "),
        (3, "'3' is not a class"),
    ],
)
def test_flow_harness_names_missing_transport_functions(owner: Any, said: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(f"FlowHarness(owner): {said}")) as raised:
        FlowHarness(owner, 3)
    assert "docs/extending.md" in str(raised.value)


def parameters_of(**settings: Any) -> list[int]:
    flow = FlowHarness(Timely, 3, **settings)
    base = flow.parameters.base
    return [int(word) for word in flow.memory[base : base + flow.parameters.WORDS]]


def test_flow_harness_accepts_numbers_beside_quantities_with_units() -> None:
    """Numbers are picoseconds, bytes and bits per second."""
    text = parameters_of(t_low="10us", t_high="100us", segment="64KiB", add_rate="20Mbps")
    assert parameters_of(t_low="10us", t_high=100_000_000, segment=65536, add_rate=20_000_000) == text
    assert parameters_of(t_low=10_000_000, t_high=100_000_000, segment="64KiB", add_rate="20Mbps") == text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"t_low": 10_000_000, "beta": 2.0}, "FlowHarness(beta): is out of range (got 2.0)"),
        ({"t_low": 10_000_000, "segment": -5}, "FlowHarness(segment): has no unit (got -5)"),
        ({"t_low": 10_000_000, "t_high": "5us"}, "FlowHarness(t_low): is not below t_high"),
        ({"t_low": "10k"}, "FlowHarness(t_low): "),
        ({"payload": 0}, "FlowHarness(payload): is 0"),
        ({"rate": 0}, "FlowHarness(rate): is 0"),
    ],
)
def test_flow_harness_checks_settings_with_and_without_units(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(said)):
        FlowHarness(Timely, 3, **settings)


class Wagons(ConstantRate):
    """Its check says something that reads as if a quantity had no unit."""

    wagons: int = 1

    @model_validator(mode="after")
    def _even(self) -> Wagons:
        if self.wagons % 2:
            raise single_mistake("wagons", "the last one has no unit beside it", self.wagons, "an even number")
        return self


def test_unit_check_does_not_parse_messages_of_user_validators() -> None:
    with pytest.raises(
        ScenarioError, match=re.escape("the last one has no unit beside it (got 5); expected an even number")
    ):
        FlowHarness(Wagons, 3, wagons=5)
    FlowHarness(Wagons, 3, wagons=4)


@njit
def _always_first(params, flow, now):  # type: ignore[no-untyped-def]
    return 0


class Endless(ConstantRate):
    """It sends its first packet for ever."""

    pull = staticmethod(_always_first)


def test_pull_of_a_sender_that_never_stops_ends_with_its_name() -> None:
    flow = FlowHarness(Endless, 3)
    assert flow.pull(most=5) == [0] * 5
    with pytest.raises(AssertionError, match=r"pull of Endless has returned 1300 packets at once; expected BLOCKED"):
        flow.pull()
