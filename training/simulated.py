"""The packet simulator, or the testbed, as the network of a training: what it loses is lost in the update, and its time
is the clock.

Every step becomes a trace of one iteration - tensors as long as their encodings, magnitudes of what the workers really
send, times of another trace or none - which is played on a network that stays (`Plays`). Packets are the reducer's
own: a message is cut where the encoding is, and over the testbed it holds the very bytes of it. A server there adds up
float32 values as they are; of other encodings it adds up words, and sends back as many bytes, which mean nothing: what
servers make of encodings is worked out here. The workers' messages to the servers may lose
packets up to their bound, and so may what the servers send back, where it is whole float32 tensors, and all messages of
a ring: then workers have parameters of their own (`gradwire.training.replicas`).

A tensor's message is as long as the longest of the workers' encodings, where these differ (DGC).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.errors import ScenarioError, TraceError
from gradwire.traces.trace import CHUNK_ELEMENTS, Iteration, TensorInfo, Trace, scale_exponents
from gradwire.training.network import Answer, Pushed
from gradwire.training.played import hops_of, masks_of

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.training.encoded import Encoded

CHUNK_BYTES = 4 * CHUNK_ELEMENTS

Back = float | Sequence[int]
"""Bytes that come back from servers: for each that is pushed, or of every tensor to each worker."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Plays(Protocol):
    """What plays one iteration at a time: `gradwire.sim.session.Session`, `gradwire.emu.session.Session`.

    takes_contents : whether it wants to know what is sent, and not only how much.
    """

    scenario: Scenario
    takes_contents: bool

    def step(self, trace: Trace, back: Back, *contents: Any, **kept: Any) -> Any:
        """Play an iteration in which so many bytes come back, of each tensor, or for each byte. If it wants to know:
        what workers send, by worker and tensor, whole words of 4 bytes; and whether these are float32 values. And,
        where there are any, as `kept` the tensors of which nothing may be lost."""
        ...

    def rest(self) -> tuple[int, int]:
        """Let the network rest, and say where it is."""
        ...

    def resume(self, built: int, steps: int) -> None:
        """Go on from there."""
        ...


@dataclass(frozen=True)
class Layout:
    """Where the units of a step's encodings lie in their messages; C chunks of all tensors that are sent.

    sizes : int64[tensors], bytes of each message, whole float32 values; 0 for what is not sent.
    units : int64[tensors], how many there are in each message.
    chunk : int64[units of all], the chunk that each unit begins in, counted through the tensors.
    starts : int64[filled], the first unit of every chunk in which one begins, and `filled`, which chunks these are.
    chunks : C.
    """

    sizes: Ints
    units: Ints
    starts: Ints
    filled: Ints
    chunks: int


class Simulated:
    """A network that plays steps: the simulator's, or the testbed's."""

    def __init__(self, plays: Plays, times: Trace | None = None) -> None:
        """
        Parameters
        ----------
        times : whose computing the workers do, iteration by iteration; it has the trained model's tensors. Computing
            takes no time if absent. The scenario's job scales it.

        Raises
        ------
        ScenarioError
            The job's exchange is neither with servers nor a ring, or packets do not hold whole values of one message.
        """
        job = plays.scenario.job[0]
        payload = (job.transport or plays.scenario.transport).payload
        if job.accumulate > 1:
            raise ScenarioError("is not trained over yet", "job.accumulate", expected="1")
        if job.exchange.kind not in ("parameter_server", "ring"):
            raise ScenarioError(
                f"{job.exchange.kind} cannot be trained over yet", "job.exchange", expected="parameter_server or ring"
            )
        if job.scheduler is not None and job.scheduler.unit_key:
            raise ScenarioError(
                f"{job.scheduler.kind} cuts gradients its own way, which trainings do not know yet", "job.scheduler",
                expected="a scheduler that leaves sizes to the exchange, such as fifo",
            )  # fmt: skip
        if payload % 4:
            raise ScenarioError(
                f"{payload} bytes cut a float32 value", "transport.payload", expected="a multiple of 4 bytes"
            )
        partition = int(getattr(job.exchange, "partition", 0))
        if partition % payload:
            raise ScenarioError(
                f"{partition} bytes cut packets", "job.exchange.partition",
                expected=f"a multiple of the payload, {payload} bytes",
            )  # fmt: skip
        self.lossy_back = job.exchange.kind == "parameter_server" and bool(job.pull_bound)
        self.plays, self.times, self.payload, self.workers = plays, times, int(payload), int(job.workers)
        self.scale = float(job.compute_scale)
        self._layouts: dict[tuple[tuple[int, int, int], ...], Layout] = {}

    def carry(self, pushed: Pushed) -> Answer:
        """Play one round of a step.

        Raises
        ------
        ScenarioError
            Workers or packets are not those of the scenario's job, or something may be lost on the way back that is
            not whole tensors.
        """
        if len(pushed.encoded) != self.workers or pushed.payload != self.payload:
            raise ScenarioError(
                f"{len(pushed.encoded)} workers with packets of {pushed.payload} bytes", "Simulated",
                f"{self.workers} and {self.payload}, as the scenario's job has",
            )  # fmt: skip
        whole = all(each.nbytes(self.payload) == 4 * info.numel for row in pushed.encoded
                    for each, info in zip(row, pushed.infos, strict=True))  # fmt: skip
        if self.lossy_back and not whole:
            bound = self.plays.scenario.job[0].pull_bound
            what = f"is {bound:g}; with a reducer it is not said what comes back from servers"
            raise ScenarioError(what, "job.pull_bound", "0, or no reducer")
        longest = [max(column, key=lambda each: each.units) for column in zip(*pushed.encoded, strict=True)]
        layout = self._layout(longest)
        if not layout.sizes.any():
            return Answer([[None] * len(pushed.infos)] * self.workers)
        sent = np.flatnonzero(layout.sizes)
        contents = (_contents(pushed, layout, sent), _numbers(pushed)) if self.plays.takes_contents else ()
        back: float | list[int] = 1.0
        if pushed.back is not None:
            answers = 4 * -(-np.array(pushed.back(), dtype=np.int64)[sent] // 4)
            back = back if (answers == layout.sizes[sent]).all() else answers.tolist()
        kept = [at for at, tensor in enumerate(sent.tolist()) if tensor in pushed.kept]
        told = {"kept": kept} if kept else {}
        played = self.plays.step(self._trace(pushed, layout, sent), back, *contents, **told)
        if pushed.layout is not None:
            nothing: list[list[Tensor | None]] = [[None] * len(pushed.infos)] * self.workers
            return Answer(nothing, int(played.time_ps), hops=hops_of(pushed.layout, sent, played))
        pushes, pulls = masks_of(pushed, sent, played)
        pulled = pulls if self.lossy_back else ()
        return Answer(pushes, int(played.time_ps), pulled, with_encoding=bool(pushed.encode_ps and self.scale))

    def state_dict(self) -> dict[str, object]:
        """Where it is. The network rests for it, and forgets what transports remember of pairs: so whoever goes on from
        here, now or later, goes on alike."""
        built, steps = self.plays.rest()
        return {"built": built, "steps": steps}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Go on from there."""
        self.plays.resume(int(str(saved["built"])), int(str(saved["steps"])))

    # --- from a step to a trace ---------------------------------------------------------------------------------

    def _layout(self, encoded: Sequence[Encoded]) -> Layout:
        key = tuple((each.units, each.unit_bytes, each.head_bytes) for each in encoded)
        if key not in self._layouts:
            if len(self._layouts) > 8:
                self._layouts.clear()
            self._layouts[key] = _laid_out(encoded, self.payload)
        return self._layouts[key]

    def _trace(self, pushed: Pushed, layout: Layout, sent: Ints) -> Trace:
        infos, layers = self._model(pushed)
        found = [self._magnitudes(pushed, worker, layout) for worker in range(self.workers)]
        means, largest = zip(*found, strict=True)
        mean, most = np.stack(means), np.stack(largest)  # [workers, chunks]
        counts = -(-layout.sizes[sent] // CHUNK_BYTES)
        first = np.cumsum(counts) - counts
        exponents = scale_exponents(np.maximum.reduceat(most.max(axis=0), first))
        per_chunk = np.repeat(exponents, counts)
        tensors = [
            TensorInfo(info.name, (size // 4,), size // 4, "float32", info.layer, exponent)
            for info, size, exponent in zip(
                [infos[index] for index in sent], layout.sizes[sent].tolist(), exponents.tolist(), strict=True
            )
        ]
        iterations = [self._iteration(pushed, worker, len(layers), sent) for worker in range(self.workers)]
        return Trace(
            {"name": "step"}, layers, tensors, iterations,
            _halves(mean, per_chunk), _halves(most, per_chunk),
        )  # fmt: skip

    def _model(self, pushed: Pushed) -> tuple[Sequence[TensorInfo], list[str]]:
        """Tensors and layers, those of the trace whose times are taken where there is one."""
        times = self.times
        if times is None:
            return pushed.infos, [f"layer {number}" for number in range(max(info.layer for info in pushed.infos) + 1)]
        if [tensor.numel for tensor in times.tensors] != [info.numel for info in pushed.infos]:
            raise TraceError("has other tensors than the trained model", times.name, "a trace of this model")
        return times.tensors, times.layers

    def _magnitudes(self, pushed: Pushed, worker: int, layout: Layout) -> tuple[Floats, Floats]:
        """(mean, largest) magnitude of each chunk's units, (C,) each. Those that a shorter message than others' has not
        got are nothing."""
        sizes = _unit_magnitudes(pushed, worker, layout.units)
        mean, most = np.zeros(layout.chunks), np.zeros(layout.chunks)
        filled, counts = layout.filled, np.diff(np.append(layout.starts, len(sizes)))
        mean[filled] = np.add.reduceat(sizes, layout.starts) / counts
        most[filled] = np.maximum.reduceat(sizes, layout.starts)
        last = np.zeros(layout.chunks, dtype=np.int64)
        last[filled] = filled
        last = np.maximum.accumulate(last)
        return mean[last], most[last]  # a chunk inside of a long unit has that one's

    def _iteration(self, pushed: Pushed, worker: int, layers: int, sent: Ints) -> Iteration:
        nothing = np.zeros(layers, dtype=np.int64)
        if self.times is None or pushed.round:
            ready = _encoded_by(pushed, worker, sent, np.zeros(len(sent), dtype=np.int64), self.scale)
            done = int(ready.max())
            return Iteration(worker, "train", pushed.step, 0.0, nothing, nothing, ready, done, 0, done, worker)
        then = self.times.iterations[pushed.step % len(self.times.iterations)]
        ready = _encoded_by(pushed, worker, sent, then.ready_ps[sent], self.scale)
        late = max(int(ready.max()) - then.backward_end_ps, 0)  # encoding may end after the backward pass
        return Iteration(
            worker, "train", pushed.step, 0.0, then.forward_start_ps, then.forward_end_ps, ready,
            then.backward_end_ps + late, then.optimizer_ps, then.end_ps + late, worker,
        )  # fmt: skip


def _encoded_by(pushed: Pushed, worker: int, sent: Ints, ready: Ints, scale: float = 1.0) -> Ints:
    """When encodings can be sent of tensors that are ready then: a worker encodes one after the other as they become
    ready, those of the back first of those that do so together. `scale`: what the job multiplies computing by, which
    encoding is not; with 0 it cannot be told apart, and is added by whoever asked."""
    if not pushed.encode_ps or not scale:
        return ready
    found, free = ready.copy(), 0
    for place in sorted(range(len(sent)), key=lambda each: (ready[each], -each)):
        free = max(free, int(ready[place])) + round(pushed.encode_ps[worker][int(sent[place])] / scale)
        found[place] = free
    return found


def _laid_out(encoded: Sequence[Encoded], payload: int) -> Layout:
    """Where units lie, given the longest encoding of each tensor."""
    sizes, places, before = [], [], 0
    for each in encoded:
        if not each.units:
            sizes.append(0)
            continue
        fit, packets = each.units_per_packet(payload), each.packets(payload)
        units = np.arange(each.units)
        packet, within = np.divmod(units, fit)
        begin = packet * payload + each.head_bytes + within * each.unit_bytes
        size = (packets - 1) * payload + each.head_bytes + (each.units - (packets - 1) * fit) * each.unit_bytes
        size = -(-size // 4) * 4
        places.append(before + begin // CHUNK_BYTES)
        before += -(-size // CHUNK_BYTES)
        sizes.append(size)
    chunk = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
    filled, starts = np.unique(chunk, return_index=True)
    units = np.array([each.units for each in encoded], dtype=np.int64)
    return Layout(np.array(sizes, dtype=np.int64), units, starts, filled, before)


def _contents(pushed: Pushed, layout: Layout, sent: Ints) -> list[list[bytes]]:
    """What workers send, by worker and tensor that is sent: packets one after the other, each at its place, and zeros
    to the end of the message."""
    found = []
    for row in pushed.encoded:
        packed = []
        for tensor in sent.tolist():
            *full, last = row[tensor].to_packets(pushed.payload) or [b""]
            whole = b"".join(each.ljust(pushed.payload, b"\0") for each in full) + last
            packed.append(whole.ljust(int(layout.sizes[tensor]), b"\0"))
        found.append(packed)
    return found


def _numbers(pushed: Pushed) -> bool:
    """Whether all that is sent are float32 values and nothing else, which servers can add up."""
    import torch

    every = [each for row in pushed.encoded for each in row]
    return all(not each.head and [field.dtype for field in each.fields] == [torch.float32] for each in every)


def _unit_magnitudes(pushed: Pushed, worker: int, units: Ints) -> Floats:
    """The mean magnitude of what each of a worker's units stands for, (units of all messages,), zero of those that only
    others have; they leave the device at once."""
    import torch

    found = []
    for tensor, count in enumerate(units.tolist()):
        mine = pushed.encoded[worker][tensor]
        if mine.units:
            found.append(pushed.unit_magnitudes(worker, tensor))
        if count > mine.units:
            found.append(mine.fields[0].new_zeros(count - mine.units, dtype=torch.float32))
    sizes = torch.cat(found).cpu().numpy().astype(np.float64)
    known = np.isfinite(sizes)
    if not known.all():  # of a training that diverges: more than any packet's numbers together
        sizes[~known] = 2**20 * sizes[known].max(initial=1.0)
    return sizes


def _halves(values: Floats, exponents: Ints) -> NDArray[np.float16]:
    halves = np.ldexp(values, exponents).astype(np.float16)
    halves[(halves == 0) & (values > 0)] = np.finfo(np.float16).smallest_subnormal
    return halves
