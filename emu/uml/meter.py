"""What programs in virtual time take of the processor: told from outside, since inside no time goes by meanwhile.

A process of the virtual machine is a process of this one [arch/um/os-Linux/skas], whose processor time this kernel
counts [proc(5), schedstat]: that of its own code in all its threads, without what the kernel inside does for it. It
cannot know its number out here, but it can have a page at an address that nobody else has, which shows in its maps.

Question and answer are names of files in a folder: the program makes ask-RANK-NUMBER-ADDRESS and looks until there is
got-RANK-NUMBER-NANOSECONDS (`gradwire.marking`). Looking costs it no time.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

LOOK_S = 0.001
"""How often somebody looks for a question; our choice."""


class Meter:
    """Answers the questions in a folder while the context lasts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._processes: dict[str, str] = {}
        """address -> number of the process out here"""

    def __enter__(self) -> Meter:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def _listen(self) -> None:
        while not self._over.wait(LOOK_S):
            with suppress(OSError):
                for name in os.listdir(self._folder):
                    if name.startswith("ask-"):
                        self._answer(name)

    def _answer(self, name: str) -> None:
        """-1 ns where there is no such process, which its mark takes for nothing known."""
        _, rank, number, address = name.split("-")
        os.unlink(self._folder / name)
        process = self._processes.get(address) or find(address)
        if process:
            self._processes[address] = process
        taken = taken_ns(process) if process else -1
        (self._folder / f"got-{rank}-{number}-{taken}").touch()


def find(address: str) -> str:
    """The number of the process that has a mapping which begins at an address (in hexadecimal digits); "" for none."""
    begin = f"{address}-".encode()
    for place in os.listdir("/proc"):
        if place.isdigit():
            with suppress(OSError):
                if any(line.startswith(begin) for line in Path("/proc", place, "maps").read_bytes().splitlines()):
                    return place
    return ""


def taken_ns(process: str) -> int:
    """Nanoseconds of processor time that a process has taken so far; -1: it is gone."""
    try:
        return int(Path("/proc", process, "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return -1
