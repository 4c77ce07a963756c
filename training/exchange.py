"""One step's exchange: the reduced gradients of all workers, over a network that may lose packets, and back as one
mean.

What servers do: every worker's encodings are cut into packets, some of which do not arrive; what has arrived is
decoded, and averaged as `fill` says. Or a ring does it, in which sums are lost on their way, and workers may end up
with different means (`gradwire.training.ring`). Which packets are lost is not decided here, but by the network: none,
by a rule, in a simulated fabric, those of an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gradwire.training.devices import CPU, Stopwatch
from gradwire.training.encoded import PAYLOAD, Encoded
from gradwire.training.network import Answer, Ideal, Network, Pushed
from gradwire.training.parts import check_units
from gradwire.training.reducers.base import Reducer, per_element
from gradwire.training.reducers.state import State
from gradwire.training.ring import VALUE, Ring
from gradwire.training.rows import Rows, Stacked, Whole, matrix_of
from gradwire.training.seam import carried
from gradwire.training.sent import Sent
from gradwire.training.strangers import (
    answering,
    check_decoded,
    check_encoded,
    check_lost,
    check_magnitudes,
    check_unchanged,
    is_own,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo

Fill = Literal["zero", "rescaled", "stale"]
"""What stands for what was lost: nothing, which makes the mean smaller; nothing, and the mean is over those that have
arrived; or what that worker sent there last."""


@dataclass
class Exchange:
    """Carries the gradients of N workers and T tensors, step after step.

    reducer : what is sent.
    infos : the tensors, T of them.
    workers : N.
    seed : what random draws hang on.
    fill : what stands for what was lost.
    payload : bytes of payload of a packet.
    feed_back : whether error feedback counts what the network lost as not sent, as a sender can whose receiver tells
        it.
    collective : whether servers add up, or a ring, of reducers that add up (`gradwire.training.collective`).
    bucket : bytes of a ring's buckets.
    pull_fill : what stands for what a ring lost in all-gather; see `Ring`.
    encode_time : how long encoding and decoding take on the clock: nothing; as long as they take here ("measured"), as
        processor time of one thread, or on a GPU, which is waited for, as time on the wall; or so many nanoseconds for
        each element of a tensor. Every worker encodes by itself, tensor after tensor; one server decodes what all have
        sent, one after the other [ours], and in a ring every worker the mean.
    device : where gradients are.

    Attributes
    ----------
    in_rows : whether steps in which nothing can be lost are made for all workers and tensors at once, to the same bits:
        on a device that has to be handed its work, unless times count or what was received has to be kept.

    Raises
    ------
    ValueError
        `fill` wants what the reducer cannot say, or a ring is to add up what it cannot.
    ScenarioError
        A unit of what the reducer sends is larger than a packet.
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
    """Of a ring one for each round."""
    in_rows: bool = field(init=False)
    rows: Rows | None = field(init=False, default=None)
    watch: Stopwatch = field(init=False)
    states: list[list[State]] = field(init=False)
    last: list[dict[int, Tensor]] = field(init=False)
    looks: bool = field(init=False, default=True)
    """Whether what the reducer answers is looked at: in the first step, and always where it is not gradwire's."""
    tried: bool = field(init=False, default=False)
    """Whether there has been a step: in the first one a reducer that is not gradwire's is tried."""

    def __post_init__(self) -> None:
        if self.fill != "zero" and self.reducer.places != "fixed":
            raise ValueError(
                f"fill = {self.fill!r} wants to know which elements were lost, and {self.reducer.kind} sends "
                "them with their places; expected zero, or a reducer whose elements have fixed places"
            )
        self.watch = Stopwatch(self.device, waits=self.encode_time == "measured")
        self.states = [
            [State(self.seed, worker, tensor, self.workers) for tensor in range(len(self.infos))]
            for worker in range(self.workers)
        ]
        self.last = [{} for _ in range(self.workers)]
        self.in_rows = (
            self.device.type != "cpu" and self.collective != "ring" and self.reducer.in_rows and self.fill != "stale"
            and self.encode_time == "none" and all(info.numel for info in self.infos)
        )  # fmt: skip
        if self.collective == "ring":
            from gradwire.training.collective import check_ring

            check_ring(self.reducer, self.workers, self.payload, self.fill, self.pull_fill)
            self.rings = [Ring(self.fill, self.pull_fill) for _ in range(self.reducer.rounds)]
        else:
            check_units(self.reducer, self.infos, self.payload)

    def step(
        self, gradients: Sequence[Sequence[Tensor]], number: int, network: Network | None = None
    ) -> tuple[list[Tensor], Sent]:
        """The mean of the gradients that everybody has after a step, T tensors in their shapes, and what it took.

        gradients : N lists of T tensors.
        number : of the step, from 0.
        network : what carries it; nothing is lost if absent.

        Raises
        ------
        ScenarioError
            A network or a reducer that is not gradwire's answers with something that does not fit.
        """
        network = network or Ideal()
        if self.rings:
            from gradwire.training.collective import reduced

            whole, sent = reduced(self, self.rings, gradients, number, network)
            self._over()
            return whole, sent
        if self.in_rows and type(network) is Ideal:
            return self._at_once(gradients, number)
        sent = self.nothing_sent()
        self.begins(number)
        encoded, times = self.compressed(gradients, sent)
        if self.tries:
            check_lost(self.reducer, encoded[0], self.infos)
        for round_ in range(self.reducer.rounds):
            shares, means = self._round(round_, number, encoded, times, network, sent)
            if round_ + 1 < self.reducer.rounds:
                encoded, times = self._following(means, sent)
        whole = []
        for tensor, info in enumerate(self.infos):
            results = [self.reducer.restore(means[tensor], info, self.states[w][tensor]) for w in range(self.workers)]
            if self.looks:
                check_decoded(self.reducer, "restore", results[0], info)
            for worker, result in enumerate(results):
                mine = shares[worker][tensor] if self.reducer.rounds == 1 else result
                self.reducer.settle(mine, info, self.states[worker][tensor])
            whole.append(results[0].view(info.shape))
        self._over()
        return whole, sent

    def state_dict(self) -> dict[str, Any]:
        """What reducers remember, and what was received last, for a checkpoint."""
        return {
            "states": [[state.state_dict() for state in states] for states in self._remembered()],
            "last": [{tensor: value.clone() for tensor, value in each.items()} for each in self.last],
            "rings": [each.state_dict() for each in self.rings],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        self.rows = None
        for states, theirs in zip(self.states, saved["states"], strict=True):
            for state, their in zip(states, theirs, strict=True):
                state.load_state_dict(their)
        self.last = [{tensor: value.clone() for tensor, value in each.items()} for each in saved["last"]]
        for ring, theirs in zip(self.rings, saved["rings"], strict=True):
            ring.load_state_dict(theirs)

    def nothing_sent(self) -> Sent:
        """What a step has come to before anything is sent."""
        return Sent([0] * self.workers, [[0.0] * len(self.infos) for _ in range(self.workers)])

    def begins(self, number: int) -> None:
        """Tell what reducers remember that a step begins."""
        for states in self._remembered():
            for state in states:
                state.step = number

    def _remembered(self) -> list[list[State]]:
        """What reducers remember, worker by worker and tensor by tensor, N x T."""
        if self.rows is not None:
            self.rows.give(self.states)
            self.rows = None
        return self.states

    def _at_once(self, gradients: Sequence[Sequence[Tensor]], number: int) -> tuple[list[Tensor], Sent]:
        """`step` over a network that loses nothing, in a few operations for all workers and tensors."""
        if self.rows is None:
            self.rows = Rows(self.infos, self.workers, self.seed, self.device)
            self.rows.take(self.states)
        self.rows.step = number
        sent, began = self.nothing_sent(), self.watch()
        whole = self.reducer.whole(matrix_of(gradients), self.rows)
        sent.encode_ns, began = self.watch() - began, self.watch()
        total = whole.sent[0].clone()
        for mine in whole.sent[1:]:
            total.add_(mine)
        mean = total.div_(self.workers)
        sent.server_ns = self.watch() - began
        self.reducer.settle_whole(whole.sent, self.rows)
        sent.nbytes = whole.nbytes
        sent.pulled_bytes = self.workers * self._answered(whole, mean, self.rows)
        return Stacked(mean[None], [info.shape for info in self.infos])[0], sent

    def _answered(self, whole: Whole, mean: Tensor, rows: Rows) -> int:
        """Bytes with which servers answer one worker (`answer_bytes`)."""
        if whole.answer is not None:
            return whole.answer
        found = rows.counts((mean != 0)[None])[0].tolist()
        return sum(shorter(VALUE * info.numel, each) for info, each in zip(self.infos, found, strict=True))

    def _pulled(self, answer: Answer) -> list[list[Tensor | None]]:
        elements = self.payload // VALUE
        return [
            [None if mask is None else per_element(mask.to(self.device), elements, info.numel)
             for mask, info in zip(row, self.infos, strict=True)]
            for row in answer.pulled
        ]  # fmt: skip

    def sizes(self, encoded: Encoded, info: TensorInfo) -> Tensor:
        """Mean magnitudes of what its units stand for."""
        found = self.reducer.magnitudes(encoded, info)
        if self.looks:
            check_magnitudes(self.reducer, found, encoded.units, info)
        return found

    def _back(self, encoded: Sequence[Sequence[Encoded]]) -> list[int]:
        """Bytes with which servers answer a worker, of every tensor, when all has arrived."""
        found = []
        for tensor, info in enumerate(self.infos):
            first, total = encoded[0][tensor], None
            if (answer := self.reducer.answered(first, info)) is not None:
                found.append(answer)
                continue
            if self.reducer.places == "sent" and not first.known:  # how many elements are in it hangs on all workers'
                for row in encoded:
                    got = self.reducer.decode(row[tensor], info)
                    if self.looks and self.reducer.rounds == 1:
                        check_decoded(self.reducer, "decode", got, info)
                    total = got if total is None else total + got
            size = self.reducer.decoded(first, info)
            found.append(answer_bytes(size, first, None if total is None else int(total.count_nonzero())))
        return found

    def _following(self, means: list[Tensor], sent: Sent) -> tuple[list[list[Encoded]], list[list[int]]]:
        return self.each(lambda w, t: self.reducer.follow(means[t], self.infos[t], self.states[w][t]), sent, "follow")

    @property
    def tries(self) -> bool:
        """Whether this is the first step, of a reducer that is not gradwire's."""
        return not self.tried and not is_own(answering(self.reducer))

    def _over(self) -> None:
        """A step is."""
        self.looks, self.tried = not is_own(answering(self.reducer)), True

    def compressed(
        self, gradients: Sequence[Sequence[Tensor]], sent: Sent
    ) -> tuple[list[list[Encoded]], list[list[int]]]:
        """What all workers send of their gradients, N lists of T tensors; see `each`."""
        make = lambda w, t: self.reducer.compress(gradients[w][t], self.infos[t], self.states[w][t])  # noqa: E731
        return self.each(make, sent, "compress", gradients if self.tries else None)

    def encoded_alone(self, worker: int, gradients: Sequence[Tensor]) -> list[Encoded]:
        """What one worker sends by itself of its gradients, T tensors. A reducer that is not gradwire's is looked at,
        and tried in the first of all."""
        tries, found = self.tries, list[Encoded]()
        for gradient, info, state in zip(gradients, self.infos, self.states[worker], strict=True):
            before = gradient.clone() if tries else None
            found.append(self.reducer.compress(gradient, info, state))
            if before is not None:
                check_unchanged(self.reducer, before, gradient, info)
            if self.looks:
                check_encoded(self.reducer, "compress", found[-1], info, self.payload)
        if tries:
            check_lost(self.reducer, found, self.infos)
        self._over()
        return found

    def each(
        self, make: Callable[[int, int], Encoded], sent: Sent, function: str,
        kept: Sequence[Sequence[Tensor]] | None = None,
    ) -> tuple[list[list[Encoded]], list[list[int]]]:  # fmt: skip
        """All encodings, and how long each took, in picoseconds. `function`: of the reducer's, that makes them; `kept`:
        tensors that it has to leave as they are."""
        encoded: list[list[Encoded]] = []
        times: list[list[int]] = []
        for worker in range(self.workers):
            encoded.append([])
            times.append([])
            for tensor in range(len(self.infos)):
                before = None if kept is None else kept[worker][tensor].clone()
                began = self.watch()
                encoded[-1].append(make(worker, tensor))
                took = self.watch() - began
                sent.encode_ns += took
                if before is not None and kept is not None:
                    check_unchanged(self.reducer, before, kept[worker][tensor], self.infos[tensor])
                if self.looks:
                    check_encoded(self.reducer, function, encoded[-1][-1], self.infos[tensor], self.payload)
                # nobody waits for what is not sent, as of vectors in the second round of PowerSGD
                times[-1].append(self.counted(tensor, took) if encoded[-1][-1].units else 0)
        return encoded, times

    def counted(self, tensor: int, took: int) -> int:
        """Picoseconds on the clock of what took so many nanoseconds here with a tensor."""
        if self.encode_time == "none":
            return 0
        if self.encode_time == "measured":
            return took * 1000
        return round(float(self.encode_time) * 1000 * self.infos[tensor].numel)

    def _round(
        self, round_: int, number: int, encoded: list[list[Encoded]], times: list[list[int]], network: Network,
        sent: Sent,
    ) -> tuple[list[list[Tensor]], list[Tensor]]:  # fmt: skip
        """What each worker counts as sent, by tensor, and the mean of what has arrived."""
        counted = () if self.encode_time == "none" else times
        pushed = Pushed(
            number, round_, self.payload, self.infos, encoded, encode_ps=counted,
            back=lambda: self._back(encoded), sizes=lambda w, t: self.sizes(encoded[w][t], self.infos[t]),
        )  # fmt: skip
        answer = carried(network, pushed)
        encoding, decoding = max(map(sum, times)), 0
        masks, sent.time_ps = answer.arrived, sent.time_ps + answer.time_ps
        sent.time_ps += 0 if answer.with_encoding else encoding
        sent.pulled = self._pulled(answer)
        shares: list[list[Tensor]] = [[] for _ in range(self.workers)]
        means = []
        for tensor, info in enumerate(self.infos):
            total, count = None, None
            for worker in range(self.workers):
                mine, mask = encoded[worker][tensor], masks[worker][tensor]
                sent.nbytes[worker] += mine.nbytes(self.payload)
                there = None if mask is None else mine.arrived(mask, self.payload)
                began = self.watch()
                got = self.reducer.decode(mine, info, there)
                took = self.watch() - began
                if self.looks and self.reducer.rounds == 1:
                    check_decoded(self.reducer, "decode", got, info)
                sent.server_ns += took
                decoding += self.counted(tensor, took) if mine.units else 0
                if there is not None and len(there):
                    loss = 1 - int(there.sum()) / len(there)
                    sent.lost[worker][tensor] = max(sent.lost[worker][tensor], loss)
                share = got if there is None or self.feed_back else self.reducer.decode(mine, info)
                shares[worker].append(share)
                if there is not None and self.fill != "zero":
                    covered = self.reducer.covered(mine, info, there)
                    if self.fill == "rescaled":
                        if count is None:
                            count = got.new_full(got.shape, float(self.workers))
                        count -= (~covered).float()
                    elif (before := self.last[worker].get(tensor)) is not None and before.shape == got.shape:
                        got = got.where(covered, before)
                if self.fill == "stale":
                    self.last[worker][tensor] = got
                began = self.watch()
                total = got.clone() if total is None else total.add_(got)
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
    """Bytes with which a server answers one worker: a tensor's mean in the shortest form that keeps it as it is.

    That is float32, or half of it where that is what was pushed; where workers send places, the elements that are not
    zero with theirs, if that is shorter; where everybody knows the places, the elements alone. Our choice: papers on
    reducers count what is pushed.

    numel : elements of the mean. encoded : what the first worker has pushed of it. filled : how many of them are not
    zero, where workers send places.
    """
    if encoded.known:
        return VALUE * encoded.units
    half = len(encoded.fields) == 1 and encoded.fields[0].is_floating_point() and encoded.fields[0].element_size() == 2
    whole = numel * (2 if half else VALUE)
    return whole if filled is None else shorter(whole, filled)


def shorter(whole: int, elements: int) -> int:
    """Bytes of a mean of which so many elements are not zero: these with their places, or all of it."""
    return min(whole, 2 * VALUE * elements)
