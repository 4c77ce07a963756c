"""Worker threads: those that advance one fabric together, and meet at a barrier after every window (`core.engine`)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gradwire.components import layout as at
from gradwire.scenarios.arrays import Ints
from gradwire.sim.fabric.specialise import Kernel


class WorkerThreads:
    """The threads that advance one fabric: the caller's, and workers that sleep while there is nothing to do."""

    def __init__(self, M: Ints, kernel: Kernel, threads: int) -> None:
        self.M = M
        self.kernel = kernel
        self.threads = threads
        self.events: list[threading.Event] = []

    def advance(self, alone: bool) -> None:
        """One call of the engine, by this thread for all of them or by all together."""
        if not alone:
            if not self.events:
                self._start()
            self.M[at.H_GO] += 1
            for event in self.events:
                event.set()
        self.kernel.run(self.M.ctypes.data, 0, self.threads, alone)

    def _start(self) -> None:
        for number in range(1, self.threads):
            event = threading.Event()
            self.events.append(event)
            epoch = int(self.M[at.H_GO])
            arguments = (self.M, self.kernel.run, number, self.threads, epoch, event)
            threading.Thread(target=_worker, args=arguments, name=f"fabric-{number}", daemon=True).start()

    def quit(self) -> None:
        """Let the workers end."""
        self.M[at.H_QUIT] = 1
        for event in self.events:
            event.set()


def _worker(
    M: Ints,
    run: Callable[..., int],
    number: int,
    threads: int,
    epoch: int,
    event: threading.Event,
) -> None:
    while not M[at.H_QUIT]:
        epoch = run(M.ctypes.data, number, threads, epoch)
        event.wait()
        event.clear()
