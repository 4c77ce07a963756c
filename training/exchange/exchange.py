"""One step's exchange: the reduced gradients of all workers cross a network that may lose packets, and return as one
mean.

With servers, every worker's encodings are cut into packets, some of which do not arrive; what has arrived is decoded,
and averaged according to `fill`. In a ring, sums are lost on their way, and workers may end up with different means
(`gradwire.training.exchange.ring_allreduce`). The network decides which packets are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients, StackedGradients, matrix_of
from gradwire.training.devices import CPU, Stopwatch
from gradwire.training.exchange.encoded_tensors import PAYLOAD, Encoded
from gradwire.training.exchange.exchange_stats import ExchangeStats
from gradwire.training.exchange.ring_allreduce import VALUE, Ring
from gradwire.training.networks.builtin_networks import Answer, Ideal, Network, Pushed
from gradwire.training.networks.network_interface import checked_carry
from gradwire.training.reducers.base import Reducer, per_element
from gradwire.training.reducers.state import State
from gradwire.training.trainer_validation import check_units
from gradwire.training.user_code.return_value_checks import (
    check_decoded,
    check_encoded,
    check_lost,
    check_magnitudes,
    check_unchanged,
    is_own,
    source_of_values,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo

Fill = Literal["zero", "rescaled", "stale"]
"""Treatment of lost values: zero, which makes the mean smaller; a mean over the workers that arrived; or the worker's
last values."""


@dataclass
class Exchange:
    """Carries the gradients of N workers and T tensors, step after step.

    reducer : encodes gradients.
    infos : the tensors, T of them.
    workers : N.
    seed : of random draws.
    fill : treatment of lost values.
    payload : bytes of payload of a packet.
    feed_back : count what the network lost as not sent in error feedback, as a sender can whose receiver reports it.
    collective : servers, or a ring, for reducers that add up (`gradwire.training.exchange.lossy_ring`).
    bucket : bytes of a ring's buckets.
    pull_fill : treatment of what a ring lost in all-gather; see `Ring`.
    encode_time : time of encoding and decoding on the clock: none; as measured here ("measured"), as processor time of
        one thread, or on a GPU, which is waited for, as wall-clock time; or a number of nanoseconds per element of a
        tensor. Every worker encodes by itself, tensor after tensor; one server decodes what all have sent, one after
        the other [ours], and in a ring every worker the mean.
    device : of the gradients.

    Attributes
    ----------
    in_rows : True if steps without loss process all workers and tensors at once, with the same bits: on a GPU, unless
        times count or received values must be kept.

    Raises ValueError if `fill` needs what the reducer cannot tell, or a ring is to add up what it cannot. Raises
    ScenarioError if a unit of the reducer's encoding is larger than a packet.
    """

    reducer: Reducer
    infos: Sequence[TensorInfo]
    workers: int
    seed: int = 0
    fill: Fill = "zero"
    payload: int = PAYLOAD
    feed_back: bool = False
    collective: Literal["parameter_server", "ring"] = "parameter_server"
    bucket: int = 25 * 2**20
    pull_fill: Literal["stale", "zero"] = "stale"
    encode_time: Literal["none", "measured"] | float = "none"
    device: torch.device = CPU
    rings: list[Ring] = field(init=False, default_factory=list)
    """Of a ring, one for each round."""
    in_rows: bool = field(init=False)
    rows: FlatGradients | None = field(init=False, default=None)
    watch: Stopwatch = field(init=False)
    states: list[list[State]] = field(init=False)
    last: list[dict[int, Tensor]] = field(init=False)
    looks: bool = field(init=False, default=True)
    """True if the reducer's return values are checked: in the first step, and always for user-defined reducers."""
    tried: bool = field(init=False, default=False)
    """True after the first step, in which a user-defined reducer gets extra checks."""

    def __post_init__(self) -> None:
        if self.fill != "zero" and self.reducer.places != "fixed":
            raise ValueError(
                f"fill = {self.fill!r} needs to know which elements were lost, and {self.reducer.kind} sends "
                "them with their positions; expected zero, or a reducer whose elements have fixed positions"
            )
        self.watch = Stopwatch(self.device, waits=self.encode_time == "measured")
        self.states = [
            [State(self.seed, worker, tensor, self.workers) for tensor in range(len(self.infos))]
            for worker in range(self.workers)
        ]
        self.last = [{} for _ in range(self.workers)]
        self.in_rows = (
            self.device.type != "cpu"
            and self.collective != "ring"
            and self.reducer.in_rows
            and self.fill != "stale"
            and self.encode_time == "none"
            and all(info.numel for info in self.infos)
        )
        if self.collective == "ring":
            from gradwire.training.exchange.lossy_ring import check_ring

            check_ring(self.reducer, self.workers, self.payload, self.fill, self.pull_fill)
            self.rings = [Ring(self.fill, self.pull_fill) for _ in range(self.reducer.rounds)]
        else:
            check_units(self.reducer, self.infos, self.payload)

    def step(
        self, gradients: Sequence[Sequence[Tensor]], number: int, network: Network | None = None
    ) -> tuple[list[Tensor], ExchangeStats]:
        """Return the mean gradients that all workers have after a step, T tensors in their shapes, and its statistics.

        gradients : N lists of T tensors.
        number : of the step, from 0.
        network : carries the step; without loss if absent.

        Raises ScenarioError if a user-defined network or reducer returned something invalid.
        """
        network = network or Ideal()
        if self.rings:
            from gradwire.training.exchange.lossy_ring import ring_step

            means, sent = ring_step(self, self.rings, gradients, number, network)
            self._finish_step()
            return means, sent
        if self.in_rows and type(network) is Ideal:
            return self._step_in_rows(gradients, number)
        sent = self.nothing_sent()
        self.begins(number)
        encoded, times = self.compressed(gradients, sent)
        if self.tries:
            check_lost(self.reducer, encoded[0], self.infos)
        for round_ in range(self.reducer.rounds):
            shares, means = self._round(round_, number, encoded, times, network, sent)
            if round_ + 1 < self.reducer.rounds:
                encoded, times = self._next_round(means, sent)
        restored = []
        for tensor, info in enumerate(self.infos):
            results = [self.reducer.restore(means[tensor], info, self.states[w][tensor]) for w in range(self.workers)]
            if self.looks:
                check_decoded(self.reducer, "restore", results[0], info)
            for worker, result in enumerate(results):
                share = shares[worker][tensor] if self.reducer.rounds == 1 else result
                self.reducer.settle(share, info, self.states[worker][tensor])
            restored.append(results[0].view(info.shape))
        self._finish_step()
        return restored, sent

    def state_dict(self) -> dict[str, Any]:
        """Return the reducers' state and the last values received, for a checkpoint."""
        return {
            "states": [[state.state_dict() for state in states] for states in self._reducer_states()],
            "last": [{tensor: value.clone() for tensor, value in values.items()} for values in self.last],
            "rings": [ring.state_dict() for ring in self.rings],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.rows = None
        for states, saved_states in zip(self.states, saved["states"], strict=True):
            for state, saved_state in zip(states, saved_states, strict=True):
                state.load_state_dict(saved_state)
        self.last = [{tensor: value.clone() for tensor, value in values.items()} for values in saved["last"]]
        for ring, saved_states in zip(self.rings, saved["rings"], strict=True):
            ring.load_state_dict(saved_states)

    def nothing_sent(self) -> ExchangeStats:
        """Return the statistics of a step before anything is sent."""
        return ExchangeStats([0] * self.workers, [[0.0] * len(self.infos) for _ in range(self.workers)])

    def begins(self, number: int) -> None:
        """Tell the reducers' states that a step begins."""
        for states in self._reducer_states():
            for state in states:
                state.step = number

    def _reducer_states(self) -> list[list[State]]:
        """Return the reducers' states by worker and tensor, N x T."""
        if self.rows is not None:
            self.rows.give(self.states)
            self.rows = None
        return self.states

    def _step_in_rows(self, gradients: Sequence[Sequence[Tensor]], number: int) -> tuple[list[Tensor], ExchangeStats]:
        """Run `step` over a lossless network, in a few operations for all workers and tensors."""
        if self.rows is None:
            self.rows = FlatGradients(self.infos, self.workers, self.seed, self.device)
            self.rows.take(self.states)
        self.rows.step = number
        sent, began = self.nothing_sent(), self.watch()
        encoded = self.reducer.whole(matrix_of(gradients), self.rows)
        sent.encode_ns, began = self.watch() - began, self.watch()
        total = encoded.sent[0].clone()
        for sent_by_worker in encoded.sent[1:]:
            total.add_(sent_by_worker)
        mean = total.div_(self.workers)
        sent.server_ns = self.watch() - began
        self.reducer.settle_whole(encoded.sent, self.rows)
        sent.nbytes = encoded.nbytes
        sent.pulled_bytes = self.workers * self._answer_bytes_in_rows(encoded, mean, self.rows)
        return StackedGradients(mean[None], [info.shape for info in self.infos])[0], sent

    def _answer_bytes_in_rows(self, encoded: EncodedModels, mean: Tensor, rows: FlatGradients) -> int:
        """Return the bytes with which servers answer one worker (`answer_bytes`)."""
        if encoded.answer is not None:
            return encoded.answer
        counts = rows.counts((mean != 0)[None])[0].tolist()
        return sum(shorter_bytes(VALUE * info.numel, count) for info, count in zip(self.infos, counts, strict=True))

    def _pulled(self, answer: Answer) -> list[list[Tensor | None]]:
        elements = self.payload // VALUE
        return [
            [
                None if mask is None else per_element(mask.to(self.device), elements, info.numel)
                for mask, info in zip(row, self.infos, strict=True)
            ]
            for row in answer.pulled
        ]

    def sizes(self, encoded: Encoded, info: TensorInfo) -> Tensor:
        """Return the mean magnitudes of an encoding's units."""
        magnitudes = self.reducer.magnitudes(encoded, info)
        if self.looks:
            check_magnitudes(self.reducer, magnitudes, encoded.units, info)
        return magnitudes

    def _answer_sizes(self, encoded: Sequence[Sequence[Encoded]]) -> list[int]:
        """Return the bytes with which servers answer a worker, of every tensor, if everything arrives."""
        answer_sizes = []
        for tensor, info in enumerate(self.infos):
            first, total = encoded[0][tensor], None
            if (answer := self.reducer.answered(first, info)) is not None:
                answer_sizes.append(answer)
                continue
            if self.reducer.places == "sent" and not first.known:  # its size depends on all workers
                for row in encoded:
                    gradient = self.reducer.decode(row[tensor], info)
                    if self.looks and self.reducer.rounds == 1:
                        check_decoded(self.reducer, "decode", gradient, info)
                    total = gradient if total is None else total + gradient
            size = self.reducer.decoded(first, info)
            answer_sizes.append(answer_bytes(size, first, None if total is None else int(total.count_nonzero())))
        return answer_sizes

    def _next_round(self, means: list[Tensor], sent: ExchangeStats) -> tuple[list[list[Encoded]], list[list[int]]]:
        return self.each(lambda w, t: self.reducer.follow(means[t], self.infos[t], self.states[w][t]), sent, "follow")

    @property
    def tries(self) -> bool:
        """True in the first step of a user-defined reducer."""
        return not self.tried and not is_own(source_of_values(self.reducer))

    def _finish_step(self) -> None:
        """Finish a step."""
        self.looks, self.tried = not is_own(source_of_values(self.reducer)), True

    def compressed(
        self, gradients: Sequence[Sequence[Tensor]], sent: ExchangeStats
    ) -> tuple[list[list[Encoded]], list[list[int]]]:
        """Return all workers' encodings of their gradients, N lists of T tensors; see `each`."""
        make = lambda w, t: self.reducer.compress(gradients[w][t], self.infos[t], self.states[w][t])  # noqa: E731
        return self.each(make, sent, "compress", gradients if self.tries else None)

    def encoded_alone(self, worker: int, gradients: Sequence[Tensor]) -> list[Encoded]:
        """Return one worker's encodings of its gradients, T tensors; a user-defined reducer is checked."""
        is_first, encodings = self.tries, list[Encoded]()
        for gradient, info, state in zip(gradients, self.infos, self.states[worker], strict=True):
            before = gradient.clone() if is_first else None
            encodings.append(self.reducer.compress(gradient, info, state))
            if before is not None:
                check_unchanged(self.reducer, before, gradient, info)
            if self.looks:
                check_encoded(self.reducer, "compress", encodings[-1], info, self.payload)
        if is_first:
            check_lost(self.reducer, encodings, self.infos)
        self._finish_step()
        return encodings

    def each(
        self,
        make: Callable[[int, int], Encoded],
        sent: ExchangeStats,
        function: str,
        kept: Sequence[Sequence[Tensor]] | None = None,
    ) -> tuple[list[list[Encoded]], list[list[int]]]:
        """Return all encodings, and the time of each in picoseconds. `function`: the reducer's function that `make`
        calls; `kept`: tensors that it must not change."""
        encoded: list[list[Encoded]] = []
        times: list[list[int]] = []
        for worker in range(self.workers):
            encoded.append([])
            times.append([])
            for tensor in range(len(self.infos)):
                before = None if kept is None else kept[worker][tensor].clone()
                began = self.watch()
                encoded[-1].append(make(worker, tensor))
                elapsed_ns = self.watch() - began
                sent.encode_ns += elapsed_ns
                if before is not None and kept is not None:
                    check_unchanged(self.reducer, before, kept[worker][tensor], self.infos[tensor])
                if self.looks:
                    check_encoded(self.reducer, function, encoded[-1][-1], self.infos[tensor], self.payload)
                # what is not sent takes no time, such as vectors in the second round of PowerSGD
                times[-1].append(self.counted(tensor, elapsed_ns) if encoded[-1][-1].units else 0)
        return encoded, times

    def counted(self, tensor: int, took: int) -> int:
        """Return the picoseconds on the clock for `took` measured nanoseconds with a tensor."""
        if self.encode_time == "none":
            return 0
        if self.encode_time == "measured":
            return took * 1000
        return round(float(self.encode_time) * 1000 * self.infos[tensor].numel)

    def _round(
        self,
        round_: int,
        number: int,
        encoded: list[list[Encoded]],
        times: list[list[int]],
        network: Network,
        sent: ExchangeStats,
    ) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Return each worker's share by tensor, as its reducer counts it, and the mean of what has arrived."""
        counted = () if self.encode_time == "none" else times
        pushed = Pushed(
            number,
            round_,
            self.payload,
            self.infos,
            encoded,
            encode_ps=counted,
            back=lambda: self._answer_sizes(encoded),
            sizes=lambda w, t: self.sizes(encoded[w][t], self.infos[t]),
        )
        answer = checked_carry(network, pushed)
        encoding, decoding = max(map(sum, times)), 0
        masks, sent.time_ps = answer.arrived, sent.time_ps + answer.time_ps
        sent.time_ps += 0 if answer.with_encoding else encoding
        sent.pulled = self._pulled(answer)
        shares: list[list[Tensor]] = [[] for _ in range(self.workers)]
        means = []
        for tensor, info in enumerate(self.infos):
            total, count = None, None
            for worker in range(self.workers):
                pushed_tensor, mask = encoded[worker][tensor], masks[worker][tensor]
                sent.nbytes[worker] += pushed_tensor.nbytes(self.payload)
                units = None if mask is None else pushed_tensor.arrived(mask, self.payload)
                began = self.watch()
                gradient = self.reducer.decode(pushed_tensor, info, units)
                elapsed_ns = self.watch() - began
                if self.looks and self.reducer.rounds == 1:
                    check_decoded(self.reducer, "decode", gradient, info)
                sent.server_ns += elapsed_ns
                decoding += self.counted(tensor, elapsed_ns) if pushed_tensor.units else 0
                if units is not None and len(units):
                    loss = 1 - int(units.sum()) / len(units)
                    sent.lost[worker][tensor] = max(sent.lost[worker][tensor], loss)
                share = gradient if units is None or self.feed_back else self.reducer.decode(pushed_tensor, info)
                shares[worker].append(share)
                if units is not None and self.fill != "zero":
                    covered = self.reducer.covered(pushed_tensor, info, units)
                    if self.fill == "rescaled":
                        if count is None:
                            count = gradient.new_full(gradient.shape, float(self.workers))
                        count -= (~covered).float()
                    elif (before := self.last[worker].get(tensor)) is not None and before.shape == gradient.shape:
                        gradient = gradient.where(covered, before)
                if self.fill == "stale":
                    self.last[worker][tensor] = gradient
                began = self.watch()
                total = gradient.clone() if total is None else total.add_(gradient)
                sent.server_ns += self.watch() - began
            assert total is not None
            means.append(total / (self.workers if count is None else count.clamp(min=1)))
            back = self.reducer.answered(encoded[0][tensor], info)
            if back is None:
                filled = int(means[-1].count_nonzero()) if self.reducer.places == "sent" else None
                back = answer_bytes(means[-1].numel(), encoded[0][tensor], filled)
            sent.pulled_bytes += self.workers * back
        sent.encode_ps += encoding
        sent.decode_ps += decoding
        sent.time_ps += decoding
        return shares, means


def answer_bytes(numel: int, encoded: Encoded, filled: int | None = None) -> int:
    """Return the bytes with which a server answers one worker: a tensor's mean in the shortest lossless form. That is
    float32, or 16 bits if that was pushed; if workers send positions, the nonzero elements with theirs, if that is
    shorter; if all know the positions, the elements alone. Our choice: papers on reducers count what is pushed.

    numel : elements of the mean. encoded : the first worker's push of it. filled : number of its nonzero elements, if
        workers send positions.
    """
    if encoded.known:
        return VALUE * encoded.units
    half = len(encoded.fields) == 1 and encoded.fields[0].is_floating_point() and encoded.fields[0].element_size() == 2
    full_bytes = numel * (2 if half else VALUE)
    return full_bytes if filled is None else shorter_bytes(full_bytes, filled)


def shorter_bytes(whole: int, elements: int) -> int:
    """Return the bytes of a mean: its nonzero elements with positions, or all of it, whichever is shorter."""
    return min(whole, 2 * VALUE * elements)
