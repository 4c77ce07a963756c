"""mark: a program says where it is, in a line of its own script.

    import gradwire
    ...
    for step, batch in enumerate(loader):
        ...
        gradwire.mark(step, loss=loss.item())

Under `gradwire exec` every call is a line of the rank's file of marks, named by $GRADWIRE_MARKS; from one mark to the
next is an iteration. Elsewhere it does nothing, so that it can stay in the script. Nothing but the standard library is
imported. A program in another language appends the same lines: {"step": 3, "time_ns": 81234567, "loss": 2.5}, with the
time of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import os
import time

from gradwire import pacing

FILE, COMPUTE, SCALE = "GRADWIRE_MARKS", "GRADWIRE_COMPUTE", "GRADWIRE_COMPUTE_SCALE"
PAGE = 4096
ANSWER_S = 10.0
"""Of processor time, about: as many looks for an answer as take so long, then it counts as not known."""


def mark(step: int | None = None, **values: float | str) -> None:
    """Note that a step is over, now.

    Parameters
    ----------
    step : its number; counted from 0 if absent. A mark before the first step is the first one's beginning.
    values : anything else worth a column, such as the loss: numbers or text.

    Raises nothing for what happens to the file: a run is worth more than its notes.
    """
    path = os.environ.get(FILE)
    if not path:
        return
    computed = _computed()
    entry: dict[str, object] = {"time_ns": time.monotonic_ns(), **computed}
    if os.environ.get("RANK", "").isdecimal():  # torchrun, started once at a host, has several ranks there
        entry["rank"] = int(os.environ["RANK"])
    if step is not None:
        entry["step"] = int(step)
    entry |= {key: value if isinstance(value, str) else float(value) for key, value in values.items()}
    line = (json.dumps(entry) + "\n").encode()
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)
    except OSError:
        pass


def _computed() -> dict[str, int]:
    """What the iteration has computed under virtual time, slept by now: `computed_ns`, and what else is known."""
    if os.environ.get(pacing.TIMES):
        found = pacing.rest_ns()
        return {} if found is None else {"computed_ns": found[0], **found[1]}
    computed = _meter.slept_ns() if os.environ.get(COMPUTE) else None
    return {} if computed is None else {"computed_ns": computed}


class _Meter:
    """Under virtual time, where computing takes none: what it took of the processor since the last mark, told from
    outside (`gradwire.emu.uml.meter`), and slept."""

    def __init__(self) -> None:
        self._asked = 0
        self._before = -1
        self._address = 0

    def slept_ns(self) -> int | None:
        """How long it has slept for it, in ns; None at the first mark, and where nothing could be found out."""
        before, self._before = self._before, self._taken()
        if before < 0 or self._before < before:
            return None
        nanoseconds = int((self._before - before) * float(os.environ.get(SCALE, "1")))
        time.sleep(nanoseconds / 1e9)
        return nanoseconds

    def _taken(self) -> int:
        """Nanoseconds of the processor that this process has taken; -1: not known."""
        folder, rank = os.environ[COMPUTE], os.environ.get("RANK", "0")
        if not self._address:
            self._address = _own_page(f"{folder}/{rank}")
        self._asked += 1
        ask = f"{folder}/ask-{rank}-{self._asked}-{self._address:x}"
        begin = f"got-{rank}-{self._asked}-"
        try:
            os.close(os.open(ask, os.O_WRONLY | os.O_CREAT, 0o644))
            for _ in range(round(ANSWER_S / 10e-6)):
                for name in os.listdir(folder):
                    if name.startswith(begin):
                        return int(name.removeprefix(begin))
        except OSError:
            pass
        return -1


def _own_page(name: str) -> int:
    """The address of a page of memory that no other process has one at: drawn from a name that is nobody else's."""
    import ctypes
    import hashlib

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    # between 128 and 384 GiB: a virtual machine has 512, and what is there by itself lies below and above
    wanted = (1 << 37) + PAGE * (int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 6)
    found = int(libc.mmap(ctypes.c_void_p(wanted), ctypes.c_size_t(PAGE), 3, 0x22, -1, ctypes.c_long(0)) or 0)
    ctypes.memset(found, 1, PAGE)  # so that it is there
    return found


_meter = _Meter()
