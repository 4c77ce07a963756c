"""`LossRecording` records the lost packets of a training run; `RecordedLossNetwork` replays them in another one.

Two tables in the folder of a training run, written with the others:

    rounds.parquet    a row per round of a step: how long the network took
    missing.parquet   a row per run of packets that did not arrive: step, round, way ("push", "pull", or "hop" of a
                      ring), hop, worker (who sent it, or got it back), tensor (of a ring: bucket), the first packet of
                      the run, and how many

Without them the lost chunks are not known; shares by tensor are in lost.parquet in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ResultError, ScenarioError
from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.schema.job.training import Training
from gradwire.scenarios.validation.argument_checks import require_path
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.ring_allreduce import HopMasks, RingLayout
from gradwire.training.loss_replay import recorded_run
from gradwire.training.loss_replay.recorded_run import WAYS
from gradwire.training.networks import network_interface
from gradwire.training.networks.network_interface import Answer, Network, NetworkWrapper, Pushed
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import Reducer
from gradwire.training.value_checks import innermost


class LossRecording(NetworkWrapper):
    """Another network whose losses are recorded."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._runs: list[Ints] = []
        self._times: list[tuple[int, int, int, int]] = []
        self._buckets: tuple[tuple[int, ...], ...] = ()
        self._pushed: dict[str, Any] = {}

    def carry(self, pushed: Pushed) -> Answer:
        """Answer as the other network, and record the losses."""
        answer = network_interface.checked_carry(self.network, pushed)
        self._pushed = self._pushed or _push_properties(pushed)
        self._times.append((pushed.step, pushed.round, answer.time_ps, answer.with_encoding))
        for way, masks in (("push", answer.arrived), ("pull", answer.pulled)):
            for worker, row in enumerate(masks):
                for tensor, mask in enumerate(row):
                    self._record(pushed, way, -1, worker, tensor, mask)
        if answer.hops is not None:
            self._buckets = answer.hops.buckets
            for bucket, hop_masks in enumerate(answer.hops.masks):
                for hop, row in enumerate(() if hop_masks is None else hop_masks):
                    for worker, mask in enumerate(row):
                        self._record(pushed, "hop", hop, worker, bucket, mask)
        return answer

    def _record(self, pushed: Pushed, way: str, hop: int, worker: int, tensor: int, mask: Tensor | None) -> None:
        if mask is None:
            return
        edges = np.flatnonzero(np.diff(~mask.cpu().numpy(), prepend=False, append=False))
        first, beyond = edges[::2], edges[1::2]
        key = (pushed.step, pushed.round, WAYS.index(way), hop, worker, tensor)
        self._runs.append(np.column_stack([*(np.full(len(first), value) for value in key), first, beyond - first]))

    def write(self, folder: Path) -> None:
        """Replace both tables in the folder of a training run. OSError if they cannot be written."""
        recorded_run.write_recording(folder, self._runs, self._times, self._buckets, self._pushed)

    def resume(self, folder: Path, steps: int) -> None:
        """Resume from the tables of a training run, using the first `steps` steps. Raises ResultError if they are
        missing or damaged."""
        runs, times, self._buckets, self._pushed = recorded_run.read_recording(folder)
        self._runs = [runs[runs[:, 0] < steps]]
        self._times = [tuple(row) for row in times[times[:, 0] < steps].tolist()]


class RecordedLossNetwork(network_interface.ReplayNetwork):
    """Repeats the losses and times of an earlier training run, step by step."""

    def __init__(self, folder: str | Path, training: Training | None = None) -> None:
        """Read the folder of a training run that recorded its losses. `training`: the training table of the run that
        replays them, if there is one; it names the system. Raises ResultError if the folder has no recorded losses, is
        missing, or damaged."""
        self.folder = require_path(folder, "Again(folder)", "the folder of a training run", ResultError)
        self.asked = training
        runs, times, self._buckets, self._pushed = recorded_run.read_recording(self.folder)
        self._times = {(row[0], row[1]): row[2:] for row in times.tolist()}
        self._runs: dict[tuple[int, int], list[list[int]]] = {}
        for row in runs.tolist():
            self._runs.setdefault((row[0], row[1]), []).append(row[2:])
        self.steps = recorded_run.steps_of(times)

    def compare(self, recipe: Recipe, infos: Sequence[TensorInfo], reducer: Reducer) -> None:
        """Raise ScenarioError, listing all differences, if such a training run cannot repeat the losses. Seeds, data,
        optimiser, precision, fill, and wrappers of the reducer may differ."""
        here: dict[str, Any] = {
            "workers": recipe.workers,
            "payload": recipe.payload,
            "exchange": recipe.collective,
            "tensors": [info.name for info in infos],
            "parameters": sum(info.numel for info in infos),
            "reducer": recorded_run.table_properties(innermost(reducer)),
        }
        if self.asked is not None:
            here |= {"model": self.asked.model, "system": recorded_run.table_properties(self.asked.system)}
        recorded_run.check_compatible(self.folder, here, self.steps, recipe.steps)

    def carry(self, pushed: Pushed) -> Answer:
        """Return the recorded outcome of that round. Raises ScenarioError if the recorded run had no such step, worker,
        tensor or packet."""
        if (
            differences := list(recorded_run.differing(self._pushed, _push_properties(pushed)))
            if not pushed.step
            else ()
        ):
            raise recorded_run.mismatch_error(self.folder, differences)
        key = pushed.step, pushed.round
        if key not in self._times:
            raise self._mismatch(f"has no step {pushed.step}, round {pushed.round}, but {self.steps} steps")
        time_ps, with_encoding = self._times[key]
        ways = pushed.all_arrived(), pushed.all_arrived()
        hops: list[Tensor | None] = [None] * len(self._buckets)
        for way, hop, worker, tensor, packet, packets in self._runs.get(key, ()):
            if worker >= len(pushed.encoded) or (WAYS[way] == "hop") is not (pushed.layout is not None):
                raise self._mismatch(f"had other workers than {len(pushed.encoded)}, or another exchange")
            if pushed.layout is not None:
                mask = self._hop_mask(pushed, pushed.layout, hops, hop, tensor)[worker]
            else:
                mask = self._message_mask(pushed, ways[way][worker], WAYS[way], worker, tensor)
            if packet + packets > len(mask):
                raise self._mismatch(f"lost packet {packet + packets - 1} of {len(mask)} in step {pushed.step}")
            mask[packet : packet + packets] = False
        lost = HopMasks(self._buckets, hops) if any(mask is not None for mask in hops) else None
        return Answer(ways[0], time_ps, ways[1] if lost is None else (), lost, bool(with_encoding))

    def _hop_mask(
        self, pushed: Pushed, layout: RingLayout, masks: list[Tensor | None], hop: int, bucket: int
    ) -> Tensor:
        """Return the mask of a ring's hop, at first all True."""
        if bucket >= len(masks) or not 0 <= hop < 2 * len(pushed.encoded) - 2:
            raise self._mismatch(f"lost something in hop {hop} of bucket {bucket}, of {len(masks)} buckets")
        if sorted(number for tensors in self._buckets for number in tensors) != list(range(len(pushed.infos))):
            raise self._mismatch(f"had buckets of other tensors than {len(pushed.infos)}")
        if (mask := masks[bucket]) is None:
            shape = replace(layout, buckets=self._buckets).mask_shape(bucket)
            mask = masks[bucket] = torch.ones(shape, dtype=torch.bool)
        return mask[hop]

    def _message_mask(self, pushed: Pushed, masks: list[Tensor | None], way: str, worker: int, tensor: int) -> Tensor:
        """Return the mask of a message, at first all True."""
        if tensor >= len(pushed.infos):
            raise self._mismatch(f"had more tensors than {len(pushed.infos)}")
        if (mask := masks[tensor]) is None:
            count = pushed.pull_packets(tensor) if way == "pull" else pushed.packets(worker, tensor)
            mask = masks[tensor] = torch.ones(count, dtype=torch.bool)
        return mask

    def _mismatch(self, what: str) -> ScenarioError:
        return ScenarioError(what, str(self.folder), recorded_run.EXPECTED)


def _push_properties(pushed: Pushed) -> dict[str, Any]:
    """Return the metadata stored under `recorded_run.PUSHED`."""
    return {
        "workers": len(pushed.encoded),
        "payload": pushed.payload,
        "exchange": "parameter_server" if pushed.layout is None else "ring",
        "tensors": [[info.name, info.numel] for info in pushed.infos],
    }
