"""Devices: what computes, by the name that a user gives it, and what that is called."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import GradwireError, TraceError

if TYPE_CHECKING:
    import torch


def pick_device(name: str, where: str = "capture", error: type[GradwireError] = TraceError) -> torch.device:
    """The device of that name; "auto" is CUDA if torch has one, else the CPU.

    Parameters
    ----------
    where : what asks for it, for the message.

    Raises
    ------
    error
        It cannot be used.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as failed:
        reason = str(failed).splitlines()[0]
        there = ", ".join(f"cuda:{number}" for number in range(torch.cuda.device_count()))
        wanted = f"cpu, auto or one of {there}" if there else "cpu, or auto: there is no GPU that torch can use"
        raise error(f"device {name!r} cannot be used ({reason})", where, wanted) from None
    return device


def device_name(device: torch.device) -> str:
    """What a device is called by its maker: "NVIDIA H100 80GB HBM3"; of the CPU, the processor's model."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def processor_name() -> str:
    """What the processor is called by its maker, as far as the system says it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
