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

FILE = "GRADWIRE_MARKS"


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
    entry: dict[str, object] = {"time_ns": time.monotonic_ns()}
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
