"""`Exchange` encodes all workers' gradients, carries them over a network that may lose packets, and returns their mean.

With servers, every worker's encodings are cut into packets, some of which do not arrive; what has arrived is decoded,
and averaged according to `fill`. In a ring, sums are lost on their way, and workers may end up with different means
(`gradwire.training.exchange.ring_allreduce`). The network decides which packets are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.traces.parts import TensorInfo
from gradwire.training import value_checks as checks
from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients, StackedGradients, matrix_of
from gradwire.training.devices import CPU, Stopwatch
from gradwire.training.exchange.encoded_tensors import PAYLOAD, Encoded
from gradwire.training.exchange.exchange_stats import Encodings, ExchangeStats, Times, answer_bytes, shorter_bytes
from gradwire.training.exchange.lossy_ring import check_ring, ring_step
from gradwire.training.exchange.ring_allreduce import VALUE, Ring
from gradwire.training.networks.builtin_networks import Ideal
from gradwire.training.networks.network_interface import Answer, Network, Pushed, checked_carry
from gradwire.training.recipe import Fill
from gradwire.training.reducers.base import Reducer, per_element
from gradwire.training.reducers.state import State, cloned

if TYPE_CHECKING:
    Gradients = Sequence[Sequence[Tensor]]
    """By worker and tensor."""


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
            what = f"fill = {self.fill!r} needs to know which elements were lost"
            why = f"{self.reducer.kind} sends them with their positions"
            raise ValueError(f"{what}, and {why}; expected zero, or a reducer whose elements have fixed positions")
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
            check_ring(self.reducer, self.workers, self.payload, self.fill, self.pull_fill)
            self.rings = [Ring(self.fill, self.pull_fill) for _ in range(self.reducer.rounds)]
        else:
            checks.check_units(self.reducer, self.infos, self.payload)

    def step(
        self, gradients: Gradients, number: int, network: Network | None = None
    ) -> tuple[list[Tensor], ExchangeStats]:
        """Return the mean gradients that all workers have after a step, T tensors in their shapes, and its statistics.

        gradients : N lists of T tensors.
        number : of the step, from 0.
        network : carries the step; without loss if absent.

        Raises ScenarioError if a user-defined network or reducer returned something invalid.
        """
        network = network or Ideal()
        if self.rings:
            means, sent = ring_step(self, gradients, number, network)
            self._finish_step()
            return means, sent
        if self.in_rows and type(network) is Ideal:
            return self._step_in_rows(gradients, number)
        sent = self.empty_stats()
        self.begin_step(number)
        encoded, times = self.compressed(gradients, sent)
        if self.is_trial:
            checks.check_lost(self.reducer, encoded[0], self.infos)
        for round_ in range(self.reducer.rounds):
            if round_:
                follow = lambda w, t, means=means: self.reducer.follow(means[t], self.infos[t], self.states[w][t])  # noqa: E731
                encoded, times = self.each(follow, sent, "follow")
            shares, means = self._round(round_, number, encoded, times, network, sent)
        restored = []
        for tensor, info in enumerate(self.infos):
            results = [self.reducer.restore(means[tensor], info, self.states[w][tensor]) for w in range(self.workers)]
            if self.looks:
                checks.check_decoded(self.reducer, "restore", results[0], info)
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
            "last": cloned(self.last),
            "rings": [ring.state_dict() for ring in self.rings],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.rows = None
        for states, saved_states in zip(self.states, saved["states"], strict=True):
            for state, saved_state in zip(states, saved_states, strict=True):
                state.load_state_dict(saved_state)
        self.last = cloned(saved["last"])
        for ring, saved_states in zip(self.rings, saved["rings"], strict=True):
            ring.load_state_dict(saved_states)

    def empty_stats(self) -> ExchangeStats:
        """Return the statistics of a step before anything is sent."""
        return ExchangeStats([0] * self.workers, [[0.0] * len(self.infos) for _ in range(self.workers)])

    def begin_step(self, number: int) -> None:
        """Tell the reducers' states that a step begins."""
        for states in self._reducer_states():
            for state in states:
                state.step = number

    def _reducer_states(self) -> list[list[State]]:
        if self.rows is not None:
            self.rows.copy_back(self.states)
            self.rows = None
        return self.states

    def _step_in_rows(self, gradients: Gradients, number: int) -> tuple[list[Tensor], ExchangeStats]:
        """Run `step` over a lossless network, in a few operations for all workers and tensors."""
        if self.rows is None:
            self.rows = FlatGradients(self.infos, self.workers, self.seed, self.device)
            self.rows.take(self.states)
        self.rows.step = number
        sent, began = self.empty_stats(), self.watch()
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
        if encoded.answer is not None:
            return encoded.answer
        counts = rows.counts((mean != 0)[None])[0].tolist()
        return sum(shorter_bytes(VALUE * info.numel, count) for info, count in zip(self.infos, counts, strict=True))

    def _pulled(self, answer: Answer) -> list[list[Tensor | None]]:
        elements = lambda mask, info: per_element(mask.to(self.device), self.payload // VALUE, info.numel)  # noqa: E731
        return [
            [mask if mask is None else elements(mask, info) for mask, info in zip(row, self.infos, strict=True)]
            for row in answer.pulled
        ]

    def sizes(self, encoded: Encoded, info: TensorInfo) -> Tensor:
        """Return the mean magnitudes of an encoding's units."""
        magnitudes = self.reducer.magnitudes(encoded, info)
        if self.looks:
            checks.check_magnitudes(self.reducer, magnitudes, encoded.units, info)
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
                        checks.check_decoded(self.reducer, "decode", gradient, info)
                    total = gradient if total is None else total + gradient
            size = self.reducer.decoded(first, info)
            answer_sizes.append(answer_bytes(size, first, None if total is None else int(total.count_nonzero())))
        return answer_sizes

    @property
    def is_trial(self) -> bool:
        """True in the first step of a user-defined reducer."""
        return not self.tried and checks.is_user_defined(self.reducer)

    def _finish_step(self) -> None:
        self.looks, self.tried = checks.is_user_defined(self.reducer), True

    def compressed(self, gradients: Gradients, sent: ExchangeStats) -> tuple[Encodings, Times]:
        """Return all workers' encodings of their gradients, N lists of T tensors; see `each`."""
        make = lambda w, t: self.reducer.compress(gradients[w][t], self.infos[t], self.states[w][t])  # noqa: E731
        return self.each(make, sent, "compress", gradients if self.is_trial else None)

    def encoded_alone(self, worker: int, gradients: Sequence[Tensor]) -> list[Encoded]:
        """Return one worker's encodings of its gradients, T tensors; a user-defined reducer is checked."""
        is_first, encodings = self.is_trial, list[Encoded]()
        for gradient, info, state in zip(gradients, self.infos, self.states[worker], strict=True):
            make = partial(self.reducer.compress, gradient, info, state)
            encodings.append(self._encoded(make, "compress", info, gradient if is_first else None)[0])
        if is_first:
            checks.check_lost(self.reducer, encodings, self.infos)
        self._finish_step()
        return encodings

    def each(
        self, make: Callable[[int, int], Encoded], sent: ExchangeStats, function: str, kept: Gradients | None = None
    ) -> tuple[Encodings, Times]:
        """Return all encodings, and the time of each in picoseconds. `function`: the reducer's function that `make`
        calls; `kept`: tensors that it must not change."""
        encoded: Encodings = []
        times: Times = []
        for worker in range(self.workers):
            results = [
                self._encoded(
                    partial(make, worker, tensor), function, info, None if kept is None else kept[worker][tensor]
                )
                for tensor, info in enumerate(self.infos)
            ]
            sent.encode_ns += sum(elapsed_ns for _, elapsed_ns in results)
            encoded.append([encoding for encoding, _ in results])
            # what is not sent takes no time, such as vectors in the second round of PowerSGD
            times.append([self.counted(t, ns) if encoding.units else 0 for t, (encoding, ns) in enumerate(results)])
        return encoded, times

    def _encoded(
        self, make: Callable[[], Encoded], function: str, info: TensorInfo, kept: Tensor | None
    ) -> tuple[Encoded, int]:
        """Return a checked encoding, and the time it took in nanoseconds."""
        before, began = None if kept is None else kept.clone(), self.watch()
        encoding = make()
        elapsed_ns = self.watch() - began
        if before is not None and kept is not None:
            checks.check_unchanged(self.reducer, before, kept, info)
        if self.looks:
            checks.check_encoded(self.reducer, function, encoding, info, self.payload)
        return encoding, elapsed_ns

    def counted(self, tensor: int, took: int) -> int:
        """Return the picoseconds on the clock for `took` measured nanoseconds with a tensor."""
        if self.encode_time == "none":
            return 0
        if self.encode_time == "measured":
            return took * 1000
        return round(float(self.encode_time) * 1000 * self.infos[tensor].numel)

    def _round(
        self, round_: int, number: int, encoded: Encodings, times: Times, network: Network, sent: ExchangeStats
    ) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Return each worker's share by tensor, as its reducer counts it, and the mean of what has arrived."""
        counted, back = () if self.encode_time == "none" else times, lambda: self._answer_sizes(encoded)
        sizes = lambda w, t: self.sizes(encoded[w][t], self.infos[t])  # noqa: E731
        pushed = Pushed(number, round_, self.payload, self.infos, encoded, None, counted, back, sizes=sizes)
        answer = checked_carry(network, pushed)
        encoding, decoding = max(map(sum, times)), 0
        masks, sent.time_ps = answer.arrived, sent.time_ps + answer.time_ps
        sent.add_retransmitted(answer.retransmitted)
        sent.time_ps += 0 if answer.with_encoding else encoding
        sent.pulled = self._pulled(answer)
        shares: list[list[Tensor]] = [[] for _ in range(self.workers)]
        means = []
        for tensor, info in enumerate(self.infos):
            total, count = None, None
            for worker in range(self.workers):
                pushed_tensor, mask = encoded[worker][tensor], masks[worker][tensor]
                sent.nbytes[worker] += pushed_tensor.nbytes(self.payload)
                units = pushed_tensor.arrived(mask, self.payload)
                began = self.watch()
                gradient = self.reducer.decode(pushed_tensor, info, units)
                elapsed_ns = self.watch() - began
                if self.looks and self.reducer.rounds == 1:
                    checks.check_decoded(self.reducer, "decode", gradient, info)
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
            answered = self.reducer.answered(encoded[0][tensor], info)
            if answered is None:
                filled = int(means[-1].count_nonzero()) if self.reducer.places == "sent" else None
                answered = answer_bytes(means[-1].numel(), encoded[0][tensor], filled)
            sent.pulled_bytes += self.workers * answered
        sent.encode_ps += encoding
        sent.decode_ps += decoding
        sent.time_ps += decoding
        return shares, means
