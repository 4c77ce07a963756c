"""Processors that do not halt while a run on the wall clock lasts.

A processor without work halts, and to wake it takes tens of microseconds - more in a virtual machine, whose host has to
do it - for every packet that finds it asleep. The kernel lets a process ask for better: as long as it holds
`/dev/cpu_dma_latency` open, having written how many microseconds it can stand, processors stay in states that they
leave as soon as that (Linux, Documentation/power/pm_qos_interface.rst). `cyclictest` does so, too. Here it is 0.
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
    """Keep all processors from halting inside. Yields why that cannot be asked for, or "". Runs are noisier without it,
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
