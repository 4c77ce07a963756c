"""Units: exact conversion, and refusals that say what would be right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gradwire.scenarios import units, wire


@pytest.mark.parametrize(
    ("parse", "text", "inner"),
    [
        (units.parse_time, "1us", 1_000_000),
        (units.parse_time, "2.5ms", 2_500_000_000),
        (units.parse_time, "0s", 0),
        (units.parse_time, " 80 ps ", 80),
        (units.parse_time, "1e-3us", 1_000),
        (units.parse_time, "3µs", 3_000_000),
        (units.parse_size, "4KiB", 4096),
        (units.parse_size, "4kB", 4000),
        (units.parse_size, "1.5KiB", 1536),
        (units.parse_size, "25MiB", 26_214_400),
        (units.parse_rate, "100Gbps", 100_000_000_000),
        (units.parse_rate, "0.4Tbps", 400_000_000_000),
        (units.parse_rate, "10kbps", 10_000),
    ],
)
def test_quantities_with_units_are_parsed(parse, text, inner):
    assert parse(text) == inner


@pytest.mark.parametrize(
    ("parse", "value", "what", "expected"),
    [
        (units.parse_rate, 100, "has no unit", "100Gbps"),
        (units.parse_rate, "100", "has no unit", "100Gbps"),
        (units.parse_rate, "100GB", '"GB" is not a unit of rate', "Gbps"),
        (units.parse_rate, "fast", "is not a rate", "100Gbps"),
        (units.parse_time, "5KiB", '"KiB" is not a unit of time', "ps, ns, us, ms, s"),
        (units.parse_time, "0.5ps", "not a whole number of picoseconds", "whole picoseconds"),
        (units.parse_time, "107days", '"days" is not a unit', "ps, ns"),
        (units.parse_time, "1e900s", "is too large", "at most"),
        (units.parse_time, True, "is not a time", "2us"),
        (units.parse_time, None, "is not a time", "2us"),
        (units.parse_size, "4Kb", '"Kb" is not a unit of size', "KiB"),
        (units.parse_size, "0.3B", "not a whole number of bytes", "whole bytes"),
        (units.parse_fraction, "10%", "is a percentage", "0.1"),
        (units.parse_fraction, 1.5, "is out of range", "between 0 and 1"),
        (units.parse_fraction, float("nan"), "is out of range", "between 0 and 1"),
        (units.parse_fraction, True, "is not a number", "between 0 and 1"),
    ],
)
def test_invalid_quantities_are_rejected(parse, value, what, expected):
    with pytest.raises(units.UnitError) as caught:
        parse(value)
    assert what in caught.value.what
    assert expected in caught.value.expected


@pytest.mark.parametrize(
    ("format_", "inner", "text"),
    [
        (units.format_time, 1_000_000, "1us"),
        (units.format_time, 1_500_000, "1.5us"),
        (units.format_time, 333_280, "333.28ns"),
        (units.format_time, 1_234_567_890_123, "1.234567890123s"),
        (units.format_time, 0, "0ps"),
        (units.format_size, 512 * 1024, "512KiB"),
        (units.format_size, 4162, "4162B"),
        (units.format_rate, 400_000_000_000, "400Gbps"),
    ],
)
def test_quantities_are_formatted_with_units(format_, inner, text):
    assert format_(inner) == text


@given(st.integers(0, units.MAX_INNER))
def test_formatted_quantities_parse_back_exactly(inner):
    assert units.parse_time(units.format_time(inner)) == inner
    assert units.parse_size(units.format_size(inner)) == inner
    assert units.parse_rate(units.format_rate(inner)) == inner


def test_header_and_frame_sizes():
    # Worked by hand: 14 Ethernet + 20 IPv4, then 20 + 12 TCP or 8 UDP + 16 gradwire.
    assert wire.TCP_OVERHEAD == 66
    assert wire.UDP_OVERHEAD == 58
    assert wire.ACK_BYTES == 66
    assert wire.DLCP_ACK_BYTES == 60
    assert wire.frame_bytes(4096, wire.TCP_OVERHEAD) == 4162
    assert wire.frame_bytes(0, 58) == 60


def test_serialisation_time_is_exact_or_rounded_up():
    assert wire.serialisation_ps(4162, 100_000_000_000) == 332_960  # 33,296 bits at 10 ps each
    assert wire.serialisation_ps(1, 3_000_000_000_000) == 3  # 8/3 ps


def test_rate_below_1kbps_is_rejected():
    adapter = TypeAdapter(units.Rate)
    assert adapter.validate_python("1kbps") == 1000
    with pytest.raises(ValidationError, match="is below 1kbps"):
        adapter.validate_python("999bps")
