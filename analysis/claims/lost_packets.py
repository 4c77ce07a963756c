"""Which packets a training lost: whether always the same ones, in runs, of several workers at a time, and where.

Of a training that has kept it (`training.keep_missing`). Packets lie in an array of steps, hops (one, to servers),
senders and places; all messages of a sender in a hop lie one behind the other. To servers these are tensors, in a ring
the segments of its buckets.
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

from gradwire.scenarios.arrays import Floats
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import parse_json

MISSING, ROUNDS = "missing.parquet", "rounds.parquet"
EXPECTED = "the tables of a training with training.keep_missing = true, as it left them"
VALUE = 4
"""Bytes of a float32."""
OFTEN = 0.5
"""Share of the steps from which on a packet is one that is lost again and again [ours]."""
ALIKE = 1e-9
"""Shares that vary by less do not vary: rounding."""
PLACE = "lost@"
"""What names of figures of a place begin with: "lost@sender,hop"."""


@dataclass(frozen=True)
class LostPackets:
    """
    Attributes
    ----------
    lost : bool[steps, hops, workers, packets].
    messages : (first packet, packet behind the last one) of each message.
    """

    lost: NDArray[np.bool_]
    messages: tuple[tuple[int, int], ...]

    def matrix(self) -> Floats:
        """The share of packets lost over all steps, by sender and hop."""
        return np.asarray(self.lost.mean(axis=(0, 3)).T)

    def again(self) -> float | None:
        """Of the packets lost in a step, the share that was lost in the one before, too; about the share lost where
        chance decides. None if nothing was lost."""
        there = int(self.lost[1:].sum())
        return int((self.lost[1:] & self.lost[:-1]).sum()) / there if there else None

    def often(self) -> float:
        """The share of all packets that are lost in half of the steps or more."""
        return float((self.lost.mean(axis=0) >= OFTEN).mean())

    def runs(self) -> float | None:
        """The mean length of runs of lost packets, over what it would be with as many lost anywhere in each message:
        k of n packets are k (n - k + 1) / n runs in the mean then. None if nothing was lost."""
        runs, expected = 0, 0.0
        for first, beyond in self.messages:
            message = self.lost[..., first:beyond]
            count = message.sum(axis=-1)
            runs += int(message[..., 0].sum()) + int((message[..., 1:] & ~message[..., :-1]).sum())
            expected += float((count * (beyond - first - count + 1)).sum()) / (beyond - first)
        return expected / runs if runs else None

    def together(self) -> float | None:
        """The correlation of two workers' shares lost over the steps, the mean of all pairs and hops, so that hops
        which lose more than others have no part in it. None if no two vary in any hop."""
        found: list[float] = []
        for shares in self.lost.mean(axis=3).swapaxes(0, 1):
            varying = shares[:, shares.std(axis=0) > ALIKE]
            if varying.shape[1] > 1:
                pairs = np.triu_indices(varying.shape[1], 1)
                found += np.corrcoef(varying.T)[pairs].tolist()
        return fmean(found) if found else None

    def worst(self) -> float | None:
        """The share lost in the place, a sender in a hop, that loses most, over that of all. None if nothing was
        lost."""
        matrix = self.matrix()
        return float(matrix.max() / matrix.mean()) if matrix.any() else None


def lost_packets(folder: Path) -> LostPackets | None:
    """Of a training's folder; None if it has not kept them.

    Raises
    ------
    ResultError
        Its tables are damaged.
    """
    if not (folder / MISSING).exists():
        return None
    try:
        table = pyarrow.parquet.read_table(folder / MISSING)
        said, buckets = (parse_json(table.schema.metadata[key]) for key in (b"pushed", b"buckets"))
        steps = 1 + int(numpy_of(pyarrow.parquet.read_table(folder / ROUNDS, columns=["step"])["step"]).max())
        ring, workers = said["exchange"] == "ring", int(said["workers"])
        sizes = _packets([numel for _, numel in said["tensors"]], buckets if ring else None, workers, said["payload"])
        return _filled(table, (steps, 2 * workers - 2 if ring else 1, workers), sizes)
    except (OSError, KeyError, ValueError, TypeError, IndexError, pyarrow.ArrowException):
        raise ResultError("is damaged", str(folder / MISSING), EXPECTED) from None


def _packets(numels: list[int], buckets: list[list[int]] | None, workers: int, payload: int) -> list[int]:
    """Packets of each message: of a tensor, or of a segment of a ring's bucket."""
    values = numels if buckets is None else [-(-sum(numels[each] for each in mine) // workers) for mine in buckets]
    return [-(-each * VALUE // payload) for each in values]


def _filled(table: pyarrow.Table, shape: tuple[int, int, int], sizes: list[int]) -> LostPackets:
    edges = np.cumsum([0, *sizes])
    step, hop, worker, tensor, packet, count = (
        numpy_of(table[name]).astype(np.int64) for name in ("step", "hop", "worker", "tensor", "packet", "packets")
    )
    forward = np.asarray(numpy_of(table["way"]) != "pull")
    place = (((step * shape[1] + np.maximum(hop, 0)) * shape[2] + worker) * edges[-1] + edges[tensor] + packet)[forward]
    change = np.zeros(int(np.prod(shape)) * int(edges[-1]) + 1, dtype=np.int8)
    np.add.at(change, place, 1)
    np.add.at(change, place + count[forward], -1)
    lost = np.cumsum(change[:-1], dtype=np.int8).astype(bool).reshape(*shape, int(edges[-1]))
    return LostPackets(lost, tuple(pairwise(edges.tolist())))


def lost_figures(folder: Path) -> dict[str, float]:
    """Measures of `gradwire.analysis.claims.measures.WORDS`, as far as a training has kept them; and the share lost by
    sender and hop."""
    found = lost_packets(folder)
    if found is None:
        return {}
    named = {
        "again_lost": found.again(), "often_lost": found.often(), "runs": found.runs(), "together": found.together(),
        "worst_place": found.worst(),
    }  # fmt: skip
    cells = {f"{PLACE}{worker},{hop}": float(share) for (worker, hop), share in np.ndenumerate(found.matrix())}
    return {name: value for name, value in named.items() if value is not None} | cells
