"""Builds the rows of a Result's table `missing`, the missing packets of delivered messages as runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("message", "packet", "packets", "offset", "bytes")


def missing_runs(message: int, missing: NDArray[np.bool_], nbytes: int, payload: int) -> NDArray[np.int64]:
    """Return the runs of missing packets of one message, int64[runs, COLUMNS].

    missing : bool per packet.
    nbytes, payload : bytes of the message, and of each of its packets but the last.
    """
    edges = np.flatnonzero(np.diff(missing, prepend=False, append=False))
    first, beyond = edges[::2], edges[1::2]
    begin, end = first * payload, np.minimum(beyond * payload, nbytes)
    return np.stack((np.full(len(first), message), first, beyond - first, begin, end - begin), axis=1)


def missing_columns(missing: Sequence[NDArray[np.int64]]) -> dict[str, Any]:
    """Return the table's columns, sorted by message, from the `missing_runs` of every message."""
    return dict(zip(COLUMNS, by_message(missing).T, strict=True))


def by_message(missing: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the table's rows, int64[runs, COLUMNS], sorted by message."""
    rows = np.concatenate(missing) if missing else np.zeros((0, len(COLUMNS)), dtype=np.int64)
    return rows[np.argsort(rows[:, 0], kind="stable")]
