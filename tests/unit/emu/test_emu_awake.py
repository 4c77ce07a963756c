"""Processors kept from halting: asked for while it lasts, and taken back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradwire.emu.system.cpu_idle import DEVICE, awake


def holders(path: Path) -> int:
    """How many files of this process are that one."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(link) == str(path)
        except OSError:  # the listing's own
            continue
    return found


def test_awake_requests_zero_latency_and_closes_device_afterwards(tmp_path: Path) -> None:
    device = tmp_path / "latency"
    device.write_bytes(b"")
    with awake(device) as why:
        assert why == "" and holders(device) == 1
        assert device.read_bytes() == bytes(4)
    assert holders(device) == 0


def test_awake_closes_device_after_an_exception(tmp_path: Path) -> None:
    device = tmp_path / "latency"
    device.write_bytes(b"")
    with pytest.raises(KeyboardInterrupt), awake(device):
        raise KeyboardInterrupt
    assert holders(device) == 0


def test_awake_returns_an_error_text_if_the_device_is_missing(tmp_path: Path) -> None:
    with awake(tmp_path / "none") as why:
        assert why == f"{tmp_path}/none: No such file or directory"


@pytest.mark.skipif(not os.access(DEVICE, os.W_OK), reason=f"{DEVICE} cannot be written")
def test_kernel_accepts_zero_latency_request() -> None:
    with awake() as why:
        assert why == "" and holders(DEVICE) == 1
        assert DEVICE.read_bytes()[:4] == bytes(4)
