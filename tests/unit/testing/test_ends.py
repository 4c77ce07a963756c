"""`Ends` with classes that are no transports, or only half of one: one message says what is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradwire.components.transports.constant_rate import ConstantRate
from gradwire.scenarios.errors import ScenarioError
from gradwire.testing import Ends


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
        (3, "'3' is no class"),
    ],
)
def test_what_is_missing_is_named(owner: Any, said: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(f"Ends(owner): {said}")) as raised:
        Ends(owner, 3)
    assert "docs/extending.md" in str(raised.value)
