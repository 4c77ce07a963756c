"""`CpuMeter` measures the processor time of programs in virtual time from outside the machine and answers their
queries.

A process of the virtual machine is a process of this one [arch/um/os-Linux/skas], whose processor time this kernel
counts [proc(5), schedstat]: that of its own code in all its threads, without the inner kernel's work for it. A program
does not know its process number outside, but it can map a page at a unique address, which appears in its maps.

Queries and replies are file names in a folder: the program makes ask-RANK-NUMBER-ADDRESS and polls for
got-RANK-NUMBER-NANOSECONDS (`gradwire.studies.iteration_markers`). Polling takes no virtual time.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

POLL_S = 0.001
"""Polling interval for queries; our choice."""


class CpuMeter:
    """Context in which the queries in a folder are answered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._processes: dict[str, str] = {}
        """address -> process number on this machine"""

    def __enter__(self) -> CpuMeter:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def _listen(self) -> None:
        while not self._over.wait(POLL_S):
            with suppress(OSError):
                for name in os.listdir(self._folder):
                    if name.startswith("ask-"):
                        self._answer(name)

    def _answer(self, name: str) -> None:
        """Answer a query; -1 ns if the process is missing, which the program takes as unknown."""
        _, rank, number, address = name.split("-")
        os.unlink(self._folder / name)
        process = self._processes.get(address) or find_process(address)
        if process:
            self._processes[address] = process
        used_ns = cpu_time_ns(process) if process else -1
        (self._folder / f"got-{rank}-{number}-{used_ns}").touch()


def find_process(address: str) -> str:
    """Return the number of the process with a mapping that begins at a hexadecimal address; "" for none."""
    begin = f"{address}-".encode()
    for number in os.listdir("/proc"):
        if number.isdigit():
            with suppress(OSError):
                if any(line.startswith(begin) for line in Path("/proc", number, "maps").read_bytes().splitlines()):
                    return number
    return ""


def cpu_time_ns(process: str) -> int:
    """Return the processor time of a process in nanoseconds; -1 if it has ended."""
    try:
        return int(Path("/proc", process, "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return -1
