"""`WorkerThreads` runs the engine in several threads that advance one fabric together, or in the caller's alone."""

from __future__ import annotations

import threading

from gradwire.jit.records.header import State
from gradwire.scenarios.arrays import Ints
from gradwire.sim.engine.specialization import CompiledEngine


class WorkerThreads:
    """The threads that advance one fabric: the caller's, and workers that sleep while idle. If compiled code raises an
    exception in one of them, the others leave as well, and the fabric stops for good."""

    def __init__(self, state: Ints, kernel: CompiledEngine, threads: int) -> None:
        self.state = state
        self.kernel = kernel
        self.threads = threads
        self.events: list[threading.Event] = []
        self._raised: Exception | None = None

    def advance(self, alone: bool) -> None:
        """Make one call of the engine, by this thread alone or by all together. Raises what compiled code has raised in
        any of them, now or before."""
        if self._raised is None and not alone:
            if not self.events:
                self._start()
            self.state[State.go.offset] += 1
            for event in self.events:
                event.set()
        if self._raised is None:
            self._run(0, int(alone))
        if self._raised is not None:
            raise self._raised

    def _run(self, number: int, epoch: int) -> int:
        """Run the engine in one thread; record an exception, so that no other thread waits for this one."""
        try:
            return self.kernel.run(self.state.ctypes.data, number, self.threads, epoch)
        except Exception as error:
            self._raised = error
            self.stop()
            return epoch

    def _start(self) -> None:
        for number in range(1, self.threads):
            event = threading.Event()
            self.events.append(event)
            arguments = (number, int(self.state[State.go.offset]), event)
            threading.Thread(target=self._work, args=arguments, name=f"fabric-{number}", daemon=True).start()

    def stop(self) -> None:
        """Let the workers end."""
        self.state[State.quit.offset] = 1
        for event in self.events:
            event.set()

    def _work(self, number: int, epoch: int, event: threading.Event) -> None:
        while not self.state[State.quit.offset]:
            epoch = self._run(number, epoch)
            event.wait()
            event.clear()
