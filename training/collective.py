"""One step's exchange around a ring: reduced gradients whose sum is made hop by hop, and may be another at each worker.

What goes around are the float32 values of reducers whose encodings can be added up value by value (`Reducer.adds_up`):
gradients themselves, elements at places that all workers know, the factors of a low-rank product. A worker decodes the
mean that it has got; where not all have the same, what its reducer remembers of it is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradwire.training.encoded import Encoded
from gradwire.training.network import Ideal, Network, Pushed
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.state import flat
from gradwire.training.ring import VALUE, Ring, RingLayout, buckets_of
from gradwire.training.seam import carried
from gradwire.training.sent import Sent
from gradwire.training.strangers import check_decoded, check_values

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.training.exchange import Exchange


def check_ring(reducer: Reducer, workers: int, payload: int, fill: str, pull_fill: str) -> None:
    """Raise ValueError if a ring cannot add up what so many workers send, or not fill it as asked."""
    if not reducer.adds_up or workers < 2 or payload % VALUE:
        raise ValueError(
            f"a ring of {workers} with packets of {payload} bytes adds up no {reducer.kind}; expected two workers or "
            "more, packets of whole float32 values, and no reducer, or one whose values can be added up"
        )
    if reducer.kind != "none" and "stale" in (fill, pull_fill):
        raise ValueError(
            f"what {reducer.kind} sent of other elements in the last step cannot stand for what is lost in a ring; "
            'expected job.pull_fill = "zero", and fill = "zero" or "rescaled"'
        )


def reduced(
    exchange: Exchange, rings: Sequence[Ring], gradients: Sequence[Sequence[Tensor]], number: int, network: Network
) -> tuple[list[Tensor], Sent]:
    """The mean of N lists of T gradients after a step, of the first worker, and what it took: `Exchange.step`.

    rings : one for each round of the reducer.
    """
    reducer, infos, workers = exchange.reducer, exchange.infos, range(exchange.workers)
    sent = exchange.nothing_sent()
    exchange.begins(number)
    encoded, times = exchange.compressed(gradients, sent)
    first = encoded
    views: list[list[Tensor]] = []
    alike = True
    for round_, ring in enumerate(rings):
        if round_:
            encoded, times = exchange.each(
                lambda w, t, seen=views: reducer.follow(_of(seen, w)[t], infos[t], exchange.states[w][t]),  # type: ignore[misc]
                sent, "follow",
            )  # fmt: skip
        views = _round(exchange, ring, round_, number, encoded, times, network, sent)
        alike = alike and len(views) == 1
    whole: list[list[Tensor]] = []
    for worker in workers:
        states = exchange.states[worker]
        mine = [
            reducer.restore(view, info, state)
            for view, info, state in zip(_of(views, worker), infos, states, strict=True)
        ]
        for tensor, info in enumerate(infos):
            share = mine[tensor] if reducer.rounds > 1 else reducer.decode(first[worker][tensor], info)
            reducer.settle(share, info, states[tensor])
        if not alike or not worker:
            whole.append([each.view(info.shape) for each, info in zip(mine, infos, strict=True)])
    sent.views = [] if alike else whole
    return whole[0], sent


def all_reduced(
    exchange: Exchange, values: Sequence[Sequence[Tensor]], number: int, network: Network | None
) -> tuple[int, int]:
    """(bytes of a worker, picoseconds) that a ring takes for float32 values of all workers, N lists of T tensors, of
    which nothing is lost: one more round of a step."""
    encoded = [[Encoded((flat(each),)) for each in mine] for mine in values]
    pushed = _pushed(exchange, encoded, number, exchange.reducer.rounds, range(len(exchange.infos)))
    assert pushed.layout is not None
    return pushed.layout.nbytes, carried(network or Ideal(), pushed).time_ps


def _round(
    exchange: Exchange, ring: Ring, round_: int, number: int, encoded: list[list[Encoded]], times: list[list[int]],
    network: Network, sent: Sent,
) -> list[list[Tensor]]:  # fmt: skip
    """What workers make of the means that they have, N lists of T flat tensors; one list where all have the same."""
    reducer, infos = exchange.reducer, exchange.infos
    for each, info in zip(encoded[0], infos, strict=True) if exchange.looks else ():
        check_values(reducer, each, info)
    counted = () if exchange.encode_time == "none" else times
    pushed = _pushed(exchange, encoded, number, round_, encode_ps=counted)
    answer, layout = carried(network, pushed), pushed.layout
    assert layout is not None
    masks: Sequence[Tensor | None] = [None] * len(layout.buckets)
    if answer.hops is not None:
        layout = replace(layout, buckets=answer.hops.buckets)
        layout.check(answer.hops)
        masks = answer.hops.masks
    means = ring.reduce(layout, [[each.fields[0] for each in mine] for mine in encoded], masks)
    sent.nbytes = [before + layout.nbytes for before in sent.nbytes]
    lost = layout.lost(masks)
    sent.lost = [list(map(max, *rows)) for rows in zip(sent.lost, lost, strict=True)]
    views: list[list[Tensor]] = []
    decoding = 0
    for worker, mine in enumerate(means):
        views.append([])
        for tensor, (mean, info) in enumerate(zip(mine, infos, strict=True)):
            form = encoded[worker][tensor]
            if mean is None:  # nothing of it was sent
                mean = form.fields[0].reshape(-1)
            began = exchange.watch()
            got = reducer.decode(replace(form, fields=(mean.view(form.fields[0].shape),)), info)
            took = exchange.watch() - began
            if exchange.looks and reducer.rounds == 1:
                check_decoded(reducer, "decode", got, info)
            decoding += exchange.counted(tensor, took) if form.units and not worker else 0
            views[-1].append(got)
    encoding = max(map(sum, times))
    sent.time_ps += answer.time_ps + decoding + (0 if answer.with_encoding else encoding)
    sent.encode_ps, sent.decode_ps = sent.encode_ps + encoding, sent.decode_ps + decoding
    return views


def _pushed(
    exchange: Exchange, encoded: Sequence[Sequence[Encoded]], number: int, round_: int, kept: Sequence[int] = (),
    encode_ps: Sequence[Sequence[int]] = (),
) -> Pushed:  # fmt: skip
    """What goes around: of each tensor as many values as its encoding has."""
    numels = tuple(each.fields[0].numel() for each in encoded[0])
    layout = RingLayout(numels, buckets_of(numels, exchange.bucket), exchange.workers, exchange.payload)
    return Pushed(number, round_, exchange.payload, exchange.infos, encoded, layout, encode_ps=encode_ps, kept=kept)


def _of(views: Sequence[list[Tensor]], worker: int) -> list[Tensor]:
    return views[worker if len(views) > 1 else 0]
