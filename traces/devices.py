"""Selects a compute device by name, and returns the makers' names of devices and processors."""

from __future__ import annotations

import platform
from pathlib import Path

from gradwire.scenarios.errors import GradwireError, TraceError
from gradwire.scenarios.lazily import torch


def pick_device(name: str, where: str = "capture", error: type[GradwireError] = TraceError) -> torch.device:
    """Return the torch device called `name`; "auto" is CUDA if torch has it, else the CPU. `where` names the caller in
    the message. Raises `error` if the device cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as failure:
        reason = str(failure).splitlines()[0]
        gpus = ", ".join(f"cuda:{number}" for number in range(torch.cuda.device_count()))
        expected = f"cpu, auto or one of {gpus}" if gpus else "cpu, or auto: torch finds no GPU"
        raise error(f"device {name!r} cannot be used ({reason})", where, expected) from None
    return device


def device_name(device: torch.device) -> str:
    """Return the maker's name of a device, such as "NVIDIA H100 80GB HBM3"; for the CPU, the processor model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def processor_name() -> str:
    """Return the maker's name of the processor, as far as the system knows it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
