"""Measures patterns of a training run's lost packets, such as repetition over steps, bursts and correlation between
workers.

Requires a run with `training.keep_missing`. Packets lie in an array of steps, hops (one, to servers), senders and
positions; the messages of a sender in a hop follow each other. With servers these are tensors, in a ring the segments
of its buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from gradwire.result_store.arrow import to_numpy
from gradwire.scenarios.arrays import Floats
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import parse_json

MISSING, ROUNDS = "missing.parquet", "rounds.parquet"
EXPECTED = "the unchanged tables of a training run with training.keep_missing = true"
VALUE = 4
"""Bytes of a float32."""
OFTEN = 0.5
"""Share of the steps from which a packet counts as lost often [ours]."""
CONSTANT_DEVIATION = 1e-9
"""Standard deviation of shares below which they count as constant (rounding)."""
PLACE_PREFIX = "lost@"
"""Prefix of the names of figures by place: "lost@sender,hop"."""


@dataclass(frozen=True)
class LostPackets:
    """Lost packets of a training run.

    lost : bool[steps, hops, workers, packets].
    messages : (first packet, end) of each message.
    """

    lost: NDArray[np.bool_]
    messages: tuple[tuple[int, int], ...]

    def matrix(self) -> Floats:
        """Return the share of packets lost over all steps, by sender and hop."""
        return np.asarray(self.lost.mean(axis=(0, 3)).T)

    def repeated_share(self) -> float | None:
        """Return the share of a step's lost packets that the previous step lost too; None if nothing was lost. By
        chance it is about the share lost."""
        lost_count = int(self.lost[1:].sum())
        return int((self.lost[1:] & self.lost[:-1]).sum()) / lost_count if lost_count else None

    def often_lost_share(self) -> float:
        """Return the share of packets that are lost in half of the steps or more."""
        return float((self.lost.mean(axis=0) >= OFTEN).mean())

    def runs(self) -> float | None:
        """Return the mean length of runs of lost packets, relative to random loss; None if nothing was lost. With k of
        n packets lost anywhere in a message, the mean number of runs is k (n - k + 1) / n."""
        runs, expected = 0, 0.0
        for first, beyond in self.messages:
            message = self.lost[..., first:beyond]
            count = message.sum(axis=-1)
            runs += int(message[..., 0].sum()) + int((message[..., 1:] & ~message[..., :-1]).sum())
            expected += float((count * (beyond - first - count + 1)).sum()) / (beyond - first)
        return expected / runs if runs else None

    def correlation(self) -> float | None:
        """Return the correlation of two workers' shares lost over the steps, mean of all pairs and hops. It is computed
        per hop, so that differences between hops have no effect. None if no two workers vary in any hop."""
        correlations: list[float] = []
        for shares in self.lost.mean(axis=3).swapaxes(0, 1):
            varying = shares[:, shares.std(axis=0) > CONSTANT_DEVIATION]
            if varying.shape[1] > 1:
                pairs = np.triu_indices(varying.shape[1], 1)
                correlations += np.corrcoef(varying.T)[pairs].tolist()
        return fmean(correlations) if correlations else None

    def worst(self) -> float | None:
        """Return the largest share lost by a sender in a hop, over that of all; None if nothing was lost."""
        matrix = self.matrix()
        return float(matrix.max() / matrix.mean()) if matrix.any() else None


def lost_packets(folder: Path) -> LostPackets | None:
    """Read the lost packets from a training run's folder; None if it did not record them. Raises `ResultError` if its
    tables are damaged."""
    if not (folder / MISSING).exists():
        return None
    try:
        table = pyarrow.parquet.read_table(folder / MISSING)
        header, buckets = (parse_json(table.schema.metadata[key]) for key in (b"pushed", b"buckets"))
        steps = 1 + int(to_numpy(pyarrow.parquet.read_table(folder / ROUNDS, columns=["step"])["step"]).max())
        ring, workers = header["exchange"] == "ring", int(header["workers"])
        sizes = _packets(
            [numel for _, numel in header["tensors"]], buckets if ring else None, workers, header["payload"]
        )
        return _filled(table, (steps, 2 * workers - 2 if ring else 1, workers), sizes)
    except (OSError, KeyError, ValueError, TypeError, IndexError, pyarrow.ArrowException):
        raise ResultError("is damaged", str(folder / MISSING), EXPECTED) from None


def _packets(numels: list[int], buckets: list[list[int]] | None, workers: int, payload: int) -> list[int]:
    """Return the packets of each message: of a tensor, or of a segment of a ring's bucket."""
    values = numels if buckets is None else [-(-sum(numels[i] for i in bucket) // workers) for bucket in buckets]
    return [-(-count * VALUE // payload) for count in values]


def _filled(table: pyarrow.Table, shape: tuple[int, int, int], sizes: list[int]) -> LostPackets:
    edges = np.cumsum([0, *sizes])
    step, hop, worker, tensor, packet, count = (
        to_numpy(table[name]).astype(np.int64) for name in ("step", "hop", "worker", "tensor", "packet", "packets")
    )
    forward = np.asarray(to_numpy(table["way"]) != "pull")
    position = (((step * shape[1] + np.maximum(hop, 0)) * shape[2] + worker) * edges[-1] + edges[tensor] + packet)[
        forward
    ]
    change = np.zeros(int(np.prod(shape)) * int(edges[-1]) + 1, dtype=np.int8)
    np.add.at(change, position, 1)
    np.add.at(change, position + count[forward], -1)
    lost = np.cumsum(change[:-1], dtype=np.int8).astype(bool).reshape(*shape, int(edges[-1]))
    return LostPackets(lost, tuple(pairwise(edges.tolist())))


def lost_figures(folder: Path) -> dict[str, float]:
    """Return measures of `gradwire.studies.reproduce.measures.MEASURE_LABELS` if recorded, and the share lost by sender
    and hop."""
    lost = lost_packets(folder)
    if lost is None:
        return {}
    named = {
        "again_lost": lost.repeated_share(),
        "often_lost": lost.often_lost_share(),
        "runs": lost.runs(),
        "together": lost.correlation(),
        "worst_place": lost.worst(),
    }
    cells = {f"{PLACE_PREFIX}{worker},{hop}": float(share) for (worker, hop), share in np.ndenumerate(lost.matrix())}
    return {name: value for name, value in named.items() if value is not None} | cells
