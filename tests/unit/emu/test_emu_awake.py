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


def test_it_is_asked_for_no_latency_at_all_and_only_inside(tmp_path: Path) -> None:
    device = tmp_path / "latency"
    device.write_bytes(b"")
    with awake(device) as why:
        assert why == "" and holders(device) == 1
        assert device.read_bytes() == bytes(4)
    assert holders(device) == 0


def test_it_is_taken_back_whatever_happens_inside(tmp_path: Path) -> None:
    device = tmp_path / "latency"
    device.write_bytes(b"")
    with pytest.raises(KeyboardInterrupt), awake(device):
        raise KeyboardInterrupt
    assert holders(device) == 0


def test_a_machine_that_has_no_such_thing_goes_on_without(tmp_path: Path) -> None:
    with awake(tmp_path / "none") as why:
        assert why == f"{tmp_path}/none: No such file or directory"


@pytest.mark.skipif(not os.access(DEVICE, os.W_OK), reason=f"{DEVICE} cannot be written")
def test_the_kernel_takes_it() -> None:
    with awake() as why:
        assert why == "" and holders(DEVICE) == 1
        assert DEVICE.read_bytes()[:4] == bytes(4)
