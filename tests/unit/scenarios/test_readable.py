"""Figures as people read them, at the edges of their units."""

from __future__ import annotations

import pytest

from gradwire.scenarios.readable import (
    accuracy_text,
    change_text,
    count_text,
    exact_percent_text,
    killed_text,
    rate_text,
    share_text,
    size_text,
    time_text,
    wall_text,
)

WORDED = [
    (time_text(48_234_000_000), "48.2 ms"), (time_text(9_999_000_000), "10.0 ms"), (time_text(0), "0 ps"),
    (time_text(1_204_000_000_000), "1.20 s"), (time_text(141_000_000), "141 us"), (time_text(-1_500), "-1.50 ns"),
    (wall_text(0.2), "1 s"), (wall_text(99.6), "2 min"), (wall_text(7200), "2.00 h"),
    (count_text(33157), "33,157"), (count_text(1_443_000), "1.44 M"), (count_text(2e9), "2.00 G"),
    (size_text(0), "0 B"), (size_text(1023), "1023 B"), (size_text(556_091), "543 KiB"), (size_text(90 * 2**20), "90.0 MiB"),
    (size_text(2**20 - 1), "1,024 KiB"), (size_text(13_509_853_184), "12.6 GiB"),
    (rate_text(1.234e9), "1.23 Gbps"), (rate_text(999), "999 bps"),
    (share_text(0), "0 %"), (share_text(0.00000001), "< 0.01 %"), (share_text(0.1), "10.0 %"), (share_text(1), "100 %"),
    (accuracy_text(0.6), "60.00 %"), (accuracy_text(0.9168), "91.68 %"), (accuracy_text(0), "0.00 %"),
    (exact_percent_text(0.1), "10 %"), (exact_percent_text(0.001), "0.1 %"), (exact_percent_text(0.07), "7 %"),
    (change_text(1.25), "+25.0 %"), (change_text(0.5), "-50.0 %"), (change_text(1), "+0.0 %"),
    (killed_text(15), "killed by signal 15"), (killed_text(9), "killed by signal 9 (out of memory?)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), WORDED, ids=[expected for _, expected in WORDED])
def test_numbers_are_formatted_with_units(text: str, expected: str) -> None:
    assert text == expected
