"""`ring_step` exchanges one step's encoded gradients around a ring that may lose packets; `ring_allreduce` computes the
sums.

The ring carries the float32 values of reducers whose encodings can be added up value by value (`Reducer.adds_up`):
gradients themselves, elements at positions that all workers know, the factors of a low-rank product. A worker decodes
the mean that it received; if the means differ, so do the reducers' states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.lazily import Tensor
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.exchange.exchange_stats import Encodings, ExchangeStats, Times
from gradwire.training.exchange.ring_allreduce import VALUE, RingLayout, buckets_of
from gradwire.training.networks.network_interface import Network, Pushed, checked_carry
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import flat
from gradwire.training.value_checks import check_decoded, check_values

if TYPE_CHECKING:
    from gradwire.training.exchange.exchange import Exchange


def check_ring(reducer: Reducer, workers: int, payload: int, fill: str, pull_fill: str) -> None:
    """Raise ValueError if a ring cannot add up what the workers send, or not fill losses as requested."""
    if not reducer.adds_up or workers < 2 or payload % VALUE:
        what = f"a ring of {workers} with packets of {payload} bytes cannot add up {reducer.kind}"
        expected = "packets of whole float32 values, and no reducer, or one whose values can be added up"
        raise ValueError(f"{what}; expected two workers or more, {expected}")
    if reducer.kind != "none" and "stale" in (fill, pull_fill):
        what = f"{reducer.kind} sends other elements in each step, which cannot replace what is lost in a ring"
        raise ValueError(f'{what}; expected job.pull_fill = "zero", and fill = "zero" or "rescaled"')


def ring_step(
    exchange: Exchange, gradients: Sequence[Sequence[Tensor]], number: int, network: Network
) -> tuple[list[Tensor], ExchangeStats]:
    """Return the first worker's mean of N lists of T gradients after a step, and its statistics: `Exchange.step`."""
    reducer, infos, workers = exchange.reducer, exchange.infos, range(exchange.workers)
    sent = exchange.empty_stats()
    exchange.begin_step(number)
    encoded, times = exchange.compressed(gradients, sent)
    first = encoded
    views: list[list[Tensor]] = []
    is_shared = True
    for round_ in range(reducer.rounds):
        if round_:
            follow = lambda w, t, seen=views: reducer.follow(_view_of(seen, w)[t], infos[t], exchange.states[w][t])  # noqa: E731
            encoded, times = exchange.each(follow, sent, "follow")
        views = _round(exchange, round_, number, encoded, times, network, sent)
        is_shared = is_shared and len(views) == 1
    means: list[list[Tensor]] = []
    for worker in workers:
        states = exchange.states[worker]
        gradients_of_worker = [
            reducer.restore(view, info, state)
            for view, info, state in zip(_view_of(views, worker), infos, states, strict=True)
        ]
        for tensor, info in enumerate(infos):
            share = gradients_of_worker[tensor] if reducer.rounds > 1 else reducer.decode(first[worker][tensor], info)
            reducer.settle(share, info, states[tensor])
        if not is_shared or not worker:
            means.append([gradient.view(info.shape) for gradient, info in zip(gradients_of_worker, infos, strict=True)])
    sent.views = [] if is_shared else means
    return means[0], sent


def lossless_all_reduce(
    exchange: Exchange, values: Sequence[Sequence[Tensor]], number: int, network: Network
) -> tuple[int, int]:
    """Return (bytes of a worker, picoseconds) of a lossless ring for float32 values, N lists of T tensors. It is one
    more round of a step."""
    encoded = [[Encoded((flat(tensor),)) for tensor in tensors] for tensors in values]
    pushed = _pushed(exchange, encoded, number, exchange.reducer.rounds, kept=range(len(exchange.infos)))
    assert pushed.layout is not None
    return pushed.layout.nbytes, checked_carry(network, pushed).time_ps


def _round(
    exchange: Exchange,
    round_: int,
    number: int,
    encoded: Encodings,
    times: Times,
    network: Network,
    sent: ExchangeStats,
) -> list[list[Tensor]]:
    """Return what workers decode from their means, N lists of T flat tensors; one list if all have the same."""
    reducer, infos = exchange.reducer, exchange.infos
    for first, info in zip(encoded[0], infos, strict=True) if exchange.looks else ():
        check_values(reducer, first, info)
    counted = () if exchange.encode_time == "none" else times
    pushed = _pushed(exchange, encoded, number, round_, encode_ps=counted)
    answer, layout = checked_carry(network, pushed), pushed.layout
    assert layout is not None
    masks: Sequence[Tensor | None] = [None] * len(layout.buckets)
    if answer.hops is not None:
        layout = replace(layout, buckets=answer.hops.buckets)
        layout.check(answer.hops)
        masks = answer.hops.masks
    means = exchange.rings[round_].reduce(
        layout, [[encoding.fields[0] for encoding in worker_means] for worker_means in encoded], masks
    )
    sent.nbytes = [before + layout.nbytes for before in sent.nbytes]
    lost = layout.lost(masks)
    sent.lost = [list(map(max, *rows)) for rows in zip(sent.lost, lost, strict=True)]
    views: list[list[Tensor]] = []
    decoding = 0
    for worker, worker_means in enumerate(means):
        views.append([])
        for tensor, (mean, info) in enumerate(zip(worker_means, infos, strict=True)):
            form = encoded[worker][tensor]
            if mean is None:  # it was not sent
                mean = form.fields[0].reshape(-1)
            began = exchange.watch()
            gradient = reducer.decode(replace(form, fields=(mean.view(form.fields[0].shape),)), info)
            elapsed_ns = exchange.watch() - began
            if exchange.looks and reducer.rounds == 1:
                check_decoded(reducer, "decode", gradient, info)
            decoding += exchange.counted(tensor, elapsed_ns) if form.units and not worker else 0
            views[-1].append(gradient)
    encoding = max(map(sum, times))
    sent.add_retransmitted(answer.retransmitted)
    sent.time_ps += answer.time_ps + decoding + (0 if answer.with_encoding else encoding)
    sent.encode_ps, sent.decode_ps = sent.encode_ps + encoding, sent.decode_ps + decoding
    return views


def _pushed(exchange: Exchange, encoded: Encodings, number: int, round_: int, **more: Any) -> Pushed:
    """Return the push of a round: of each tensor as many values as its encoding has."""
    numels = tuple(encoding.fields[0].numel() for encoding in encoded[0])
    layout = RingLayout(numels, buckets_of(numels, exchange.bucket), exchange.workers, exchange.payload)
    return Pushed(number, round_, exchange.payload, exchange.infos, encoded, layout, **more)


def _view_of(views: Sequence[list[Tensor]], worker: int) -> list[Tensor]:
    return views[worker if len(views) > 1 else 0]
