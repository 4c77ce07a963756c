"""Which packets of a training were lost, kept beside it, and lost again in another one.

Two tables in the folder of a training, written with its other ones:

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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ResultError, ScenarioError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.output import replaced
from gradwire.training.earlier import (
    BUCKETS,
    COLUMNS,
    EXPECTED,
    MISSING,
    PUSHED,
    ROUNDS,
    TIMES,
    WAYS,
    another,
    compare,
    differing,
    read_kept,
    steps_of,
    table_said,
)
from gradwire.training.network import Answer, Memoryless, Network, Pushed
from gradwire.training.ring import Hops
from gradwire.training.seam import carried
from gradwire.training.strangers import innermost

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.scenarios.schema.training import Training
    from gradwire.traces.trace import TensorInfo
    from gradwire.training.reducers.base import Reducer


class Kept:
    """Another network, of whose answers it is kept what was lost."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._runs: list[Ints] = []
        self._times: list[tuple[int, int, int, int]] = []
        self._buckets: tuple[tuple[int, ...], ...] = ()
        self._pushed: dict[str, Any] = {}

    def carry(self, pushed: Pushed) -> Answer:
        """As the other one does."""
        answer = carried(self.network, pushed)
        self._pushed = self._pushed or _said(pushed)
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
            metadata={BUCKETS: json.dumps(self._buckets).encode(), PUSHED: json.dumps(self._pushed).encode()},
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
        runs, times, self._buckets, self._pushed = read_kept(folder)
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

    def __init__(self, folder: str | Path, asked: Training | None = None) -> None:
        """Of the folder of a training that has kept it. `asked`: the table of the training that loses it again, where
        there is one; it says by which system that trains.

        Raises
        ------
        ResultError
            It has not, is not there, or damaged.
        """
        self.folder = path_of(folder, "Again(folder)", "the folder of a training", ResultError)
        self.asked = asked
        runs, times, self._buckets, self._pushed = read_kept(self.folder)
        self._times = {(row[0], row[1]): row[2:] for row in times.tolist()}
        self._runs: dict[tuple[int, int], list[list[int]]] = {}
        for row in runs.tolist():
            self._runs.setdefault((row[0], row[1]), []).append(row[2:])
        self.steps = steps_of(times)

    def compare(
        self, workers: int, payload: int, collective: Literal["parameter_server", "ring"], steps: int,
        infos: Sequence[TensorInfo], reducer: Reducer,
    ) -> None:  # fmt: skip
        """Whether what it lost can be lost by a training of so many workers and steps, as far as its folder says.

        Seeds, data, optimiser, precision, fill, and what is around a reducer may be others.

        Raises
        ------
        ScenarioError
            It cannot; with all that differs.
        ResultError
            What the folder says is damaged.
        """
        here: dict[str, Any] = {
            "workers": workers, "payload": payload, "exchange": collective, "tensors": [info.name for info in infos],
            "parameters": sum(info.numel for info in infos), "reducer": table_said(innermost(reducer)),
        }  # fmt: skip
        if self.asked is not None:
            here |= {"model": self.asked.model, "system": table_said(self.asked.system)}
        compare(self.folder, here, self.steps, steps)

    def carry(self, pushed: Pushed) -> Answer:
        """What became of that round then.

        Raises
        ------
        ScenarioError
            That training had no such step, worker, tensor or packet.
        """
        if others := list(differing(self._pushed, _said(pushed))) if not pushed.step else ():
            raise another(self.folder, others)
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
            if tensor >= len(hops) or not 0 <= hop < 2 * len(pushed.encoded) - 2:
                raise self._other(f"lost something in hop {hop} of bucket {tensor}, of {len(hops)} buckets")
            if sorted(each for bucket in self._buckets for each in bucket) != list(range(len(pushed.infos))):
                raise self._other(f"had buckets of other tensors than {len(pushed.infos)}")
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
        return ScenarioError(what, str(self.folder), EXPECTED)


def remembers(network: Network) -> bool:
    """Whether what a network answers hangs on what it carried before, so that it has to rest for a checkpoint; of what
    is around another one: whether that does."""
    while (inner := getattr(network, "network", None)) is not None:
        network = inner
    return not isinstance(network, Memoryless)


def _named(ways: Ints) -> Any:
    import pyarrow

    return pyarrow.array([WAYS[each] for each in ways.tolist()], pyarrow.string())


def _said(pushed: Pushed) -> dict[str, Any]:
    """What `PUSHED` keeps."""
    return {
        "workers": len(pushed.encoded), "payload": pushed.payload,
        "exchange": "parameter_server" if pushed.layout is None else "ring",
        "tensors": [[info.name, info.numel] for info in pushed.infos],
    }  # fmt: skip
