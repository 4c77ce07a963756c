"""Disables processor idle states during a run on the wall clock.

An idle processor halts, and waking it takes tens of microseconds (more in a virtual machine, whose host has to do it)
for every packet. While a process holds `/dev/cpu_dma_latency` open with a limit in microseconds written to it, the
kernel uses only idle states with a lower wake-up latency (Linux, Documentation/power/pm_qos_interface.rst).
`cyclictest` does the same. Here the limit is 0.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEVICE = Path("/dev/cpu_dma_latency")


@contextmanager
def awake(device: Path = DEVICE) -> Iterator[str]:
    """Disable idle states of all processors inside the block; yield the error, or "". Without it runs are noisier, but
    not wrong."""
    try:
        file = os.open(device, os.O_WRONLY)
    except OSError as error:
        yield f"{device}: {error.strerror}"
        return
    try:
        os.write(file, struct.pack("=i", 0))
        yield ""
    finally:
        os.close(file)
