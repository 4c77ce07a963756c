"""`gradwire.mark` appends a training step's end to a file under `gradwire exec`, and in virtual time sleeps its compute
time.

    import gradwire
    ...
    for step, batch in enumerate(loader):
        ...
        gradwire.mark(step, loss=loss.item())

Under `gradwire exec` every call appends a line to the rank's file of marks, named by $GRADWIRE_MARKS; an iteration
lasts from one mark to the next. Elsewhere it does nothing, so that it can stay in the script. Only the standard library
is imported. A program in another language appends the same lines: {"step": 3, "time_ns": 81234567, "loss": 2.5}, with
the time of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import os
import time

from gradwire.studies import compute_replay

FILE, COMPUTE, SCALE = "GRADWIRE_MARKS", "GRADWIRE_COMPUTE", "GRADWIRE_COMPUTE_SCALE"
PAGE = 4096
ANSWER_S = 10.0
"""Approximate limit of the processor time spent polling for an answer; after that it is unknown."""


def mark(step: int | None = None, **values: float | str) -> None:
    """Note that a step has just ended.

    step : its number; counted from 0 if absent. A mark before the first step is the start of the first one.
    values : further columns, such as the loss: numbers or text.

    Ignores file errors: a run is worth more than its notes.
    """
    path = os.environ.get(FILE)
    if not path:
        return
    computed = _compute_times()
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


def _compute_times() -> dict[str, int]:
    """Sleep the compute time of the iteration under virtual time, and return `computed_ns` and the ends of passes."""
    if os.environ.get(compute_replay.TIMETABLE_VARIABLE):
        rest = compute_replay.rest_ns()
        return {} if rest is None else {"computed_ns": rest[0], **rest[1]}
    computed = _meter.slept_ns() if os.environ.get(COMPUTE) else None
    return {} if computed is None else {"computed_ns": computed}


class _Meter:
    """Measures the processor time since the last mark, and sleeps it, under virtual time, where computing takes no
    time.

    The time comes from outside (`gradwire.emu.virtual_time.cpu_meter`).
    """

    def __init__(self) -> None:
        self._requests = 0
        self._before = -1
        self._address = 0

    def slept_ns(self) -> int | None:
        """Sleep the processor time since the last mark and return it in ns; None at the first mark, and if unknown."""
        before, self._before = self._before, self._cpu_time_ns()
        if before < 0 or self._before < before:
            return None
        nanoseconds = int((self._before - before) * float(os.environ.get(SCALE, "1")))
        time.sleep(nanoseconds / 1e9)
        return nanoseconds

    def _cpu_time_ns(self) -> int:
        """Return the processor time of this process in nanoseconds; -1 if unknown."""
        folder, rank = os.environ[COMPUTE], os.environ.get("RANK", "0")
        if not self._address:
            self._address = _unique_page(f"{folder}/{rank}")
        self._requests += 1
        ask = f"{folder}/ask-{rank}-{self._requests}-{self._address:x}"
        begin = f"got-{rank}-{self._requests}-"
        try:
            os.close(os.open(ask, os.O_WRONLY | os.O_CREAT, 0o644))
            for _ in range(round(ANSWER_S / 10e-6)):
                for name in os.listdir(folder):
                    if name.startswith(begin):
                        return int(name.removeprefix(begin))
        except OSError:
            pass
        return -1


def _unique_page(name: str) -> int:
    """Return the address of a memory page that no other process uses, drawn from a unique name."""
    import ctypes
    import hashlib

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    # between 128 and 384 GiB: a virtual machine has 512, with its own mappings below and above
    hint = (1 << 37) + PAGE * (int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 6)
    address = int(libc.mmap(ctypes.c_void_p(hint), ctypes.c_size_t(PAGE), 3, 0x22, -1, ctypes.c_long(0)) or 0)
    ctypes.memset(address, 1, PAGE)  # makes it resident
    return address


_meter = _Meter()
