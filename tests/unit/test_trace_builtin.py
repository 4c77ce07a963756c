"""Captures with built-in models: settings that are refused, devices."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture records PyTorch training (extra: capture)")

from scenarios.errors import TraceError  # noqa: E402
from traces.builtin import BuiltinRun, pick_device  # noqa: E402
from traces.clocks import clock_for  # noqa: E402


def test_devices() -> None:
    assert pick_device("cpu").type == "cpu"
    for name in ("abacus", "meta:zero"):
        with pytest.raises(TraceError, match=name):
            pick_device(name)
    with pytest.raises(TraceError, match="device meta; expected cpu or cuda"):
        clock_for(torch.device("meta"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "resnet5"),
        ("image_size", 16),
        ("iterations", 0),
        ("late", 21),
        ("threads", 0),
        ("early", -1),
    ],
)
def test_bad_settings(field: str, value: Any) -> None:
    with pytest.raises(TraceError, match=f"capture: {field.replace('_', '[_ ]')}"):
        BuiltinRun(**{"data": "nowhere", field: value})
