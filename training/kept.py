"""Which packets of a training were lost, kept beside it, and lost again in another one.

Two tables in the folder of a training, written at every checkpoint:

    rounds.parquet    a row per round of a step: how long the network took
    missing.parquet   a row per run of packets that did not arrive: step, round, way ("push", "pull", or "hop" of a
                      ring), hop, worker (who sent it, or got it back), tensor (of a ring: bucket), the first packet of
                      the run, and how many

A training that keeps less would have to be made again to know which chunks were lost; shares by tensor are in
lost.parquet in any case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import ResultError, ScenarioError
from gradwire.scenarios.output import replaced
from gradwire.training.network import Answer, Memoryless, Network, Pushed
from gradwire.training.ring import Hops

if TYPE_CHECKING:
    from torch import Tensor

ROUNDS, MISSING = "rounds.parquet", "missing.parquet"
WAYS = ("push", "pull", "hop")
COLUMNS = ("step", "round", "way", "hop", "worker", "tensor", "packet", "packets")
TIMES = ("step", "round", "time_ps", "with_encoding")
BUCKETS = b"buckets"
"""Key of the file's metadata with the tensors of a ring's buckets."""


class Kept:
    """Another network, of whose answers it is kept what was lost."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._runs: list[Ints] = []
        self._times: list[tuple[int, int, int, int]] = []
        self._buckets: tuple[tuple[int, ...], ...] = ()

    def carry(self, pushed: Pushed) -> Answer:
        """As the other one does."""
        answer = self.network.carry(pushed)
        self._times.append((pushed.step, pushed.round, answer.time_ps, answer.with_encoding))
        for way, masks in (("push", answer.arrived), ("pull", answer.pulled)):
            for worker, row in enumerate(masks):
                for tensor, mask in enumerate(row):
                    self._note(pushed, way, -1, worker, tensor, mask)
        if answer.hops is not None:
            self._buckets = answer.hops.buckets
            for bucket, whole in enumerate(answer.hops.masks):
                for hop, row in enumerate(() if whole is None else whole):
                    for worker, mask in enumerate(row):
                        self._note(pushed, "hop", hop, worker, bucket, mask)
        return answer

    def _note(self, pushed: Pushed, way: str, hop: int, worker: int, tensor: int, mask: Tensor | None) -> None:
        if mask is None:
            return
        edges = np.flatnonzero(np.diff(~mask.cpu().numpy(), prepend=False, append=False))
        first, beyond = edges[::2], edges[1::2]
        same = (pushed.step, pushed.round, WAYS.index(way), hop, worker, tensor)
        self._runs.append(np.column_stack([*(np.full(len(first), each) for each in same), first, beyond - first]))

    def write(self, folder: Path) -> None:
        """Replace both tables in the folder of a training. OSError if they cannot be written."""
        import pyarrow
        import pyarrow.parquet

        runs = np.concatenate(self._runs) if self._runs else np.zeros((0, len(COLUMNS)), np.int64)
        missing = pyarrow.table(
            {name: _named(column) if name == "way" else column for name, column in zip(COLUMNS, runs.T, strict=True)},
            metadata={BUCKETS: json.dumps(self._buckets).encode()},
        )
        times = np.array(self._times, dtype=np.int64).reshape(-1, len(TIMES))
        for name, table in ((MISSING, missing), (ROUNDS, pyarrow.table(dict(zip(TIMES, times.T, strict=True))))):
            with replaced(folder / name) as partial:
                pyarrow.parquet.write_table(table, partial)

    def resume(self, folder: Path, steps: int) -> None:
        """Go on from the tables of a training, of which so many steps count.

        Raises
        ------
        ResultError
            They are not there, or damaged.
        """
        runs, times, self._buckets = _read(folder)
        self._runs = [runs[runs[:, 0] < steps]]
        self._times = [tuple(row) for row in times[times[:, 0] < steps].tolist()]

    def state_dict(self) -> dict[str, object]:
        """The other one's."""
        return self.network.state_dict()

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """The other one's."""
        self.network.load_state_dict(saved)


class Again(Memoryless):
    """Loses what an earlier training lost, step by step, and takes as long as that did."""

    def __init__(self, folder: str | Path) -> None:
        """Of the folder of a training that has kept it.

        Raises
        ------
        ResultError
            It has not.
        """
        self.folder = Path(folder)
        runs, times, self._buckets = _read(self.folder)
        self._times = {(row[0], row[1]): row[2:] for row in times.tolist()}
        self._runs: dict[tuple[int, int], list[list[int]]] = {}
        for row in runs.tolist():
            self._runs.setdefault((row[0], row[1]), []).append(row[2:])
        self.steps = 1 + max((step for step, _ in self._times), default=-1)

    def carry(self, pushed: Pushed) -> Answer:
        """What became of that round then.

        Raises
        ------
        ScenarioError
            That training had no such step, worker, tensor or packet.
        """
        at = pushed.step, pushed.round
        if at not in self._times:
            raise self._other(f"has no step {pushed.step}, round {pushed.round}, but {self.steps} steps")
        time_ps, with_encoding = self._times[at]
        ways: list[list[list[Tensor | None]]] = [
            [[None] * len(pushed.infos) for _ in pushed.encoded] for _ in range(2)
        ]
        hops: list[Tensor | None] = [None] * len(self._buckets)
        for way, hop, worker, tensor, packet, packets in self._runs.get(at, ()):
            mask = self._mask(pushed, ways, hops, (way, hop, worker, tensor))
            if packet + packets > len(mask):
                raise self._other(f"lost packet {packet + packets - 1} of {len(mask)} in step {pushed.step}")
            mask[packet : packet + packets] = False
        found = Hops(self._buckets, hops) if any(each is not None for each in hops) else None
        return Answer(ways[0], time_ps, ways[1] if found is None else (), found, bool(with_encoding))

    def _mask(
        self, pushed: Pushed, ways: list[list[list[Tensor | None]]], hops: list[Tensor | None], at: Sequence[int]
    ) -> Tensor:
        """The mask of a message, all of it there at first."""
        import torch

        way, hop, worker, tensor = at
        if worker >= len(pushed.encoded) or (WAYS[way] == "hop") is not (pushed.layout is not None):
            raise self._other(f"had other workers than {len(pushed.encoded)}, or another exchange")
        if pushed.layout is not None:
            if hops[tensor] is None:
                layout, count = replace(pushed.layout, buckets=self._buckets), len(pushed.encoded)
                hops[tensor] = torch.ones(2 * count - 2, count, layout.packets(tensor), dtype=torch.bool)
            whole = hops[tensor]
            assert whole is not None
            return whole[hop, worker]
        if tensor >= len(pushed.infos):
            raise self._other(f"had more tensors than {len(pushed.infos)}")
        mask = ways[way][worker][tensor]
        if mask is None:
            count = pushed.pull_packets(tensor) if WAYS[way] == "pull" else pushed.packets(worker, tensor)
            mask = ways[way][worker][tensor] = torch.ones(count, dtype=torch.bool)
        return mask

    def _other(self, what: str) -> ScenarioError:
        return ScenarioError(what, str(self.folder), "a training of the same model, workers, payload and steps")


def _named(ways: Ints) -> Any:
    import pyarrow

    return pyarrow.array([WAYS[each] for each in ways.tolist()], pyarrow.string())


def _read(folder: Path) -> tuple[Ints, Ints, tuple[tuple[int, ...], ...]]:
    """(runs, times, buckets) of a training's folder."""
    import pyarrow
    import pyarrow.parquet

    try:
        missing = pyarrow.parquet.read_table(folder / MISSING)
        times = pyarrow.parquet.read_table(folder / ROUNDS)
        ways = [WAYS.index(each) for each in missing["way"].to_pylist()]
        columns = [ways if name == "way" else numpy_of(missing[name]) for name in COLUMNS]
        buckets = json.loads(missing.schema.metadata[BUCKETS])
        return (
            np.column_stack(columns).astype(np.int64), np.column_stack([numpy_of(times[name]) for name in TIMES]),
            tuple(tuple(each) for each in buckets),
        )  # fmt: skip
    except FileNotFoundError:
        what = "has not kept which packets were lost"
        raise ResultError(what, str(folder), "a training with training.keep_missing = true") from None
    except (OSError, KeyError, ValueError, TypeError, pyarrow.ArrowException):
        raise ResultError("is damaged", str(folder / MISSING), "tables of a training") from None
