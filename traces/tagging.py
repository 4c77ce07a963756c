"""`Tagger` marks the important packets of a trace's tensors by magnitude; `layer_priorities` assigns priorities to
tensors by layer.

A trace has figures per chunk of 256 elements; packets have any size. The mean |g| of a packet is the mean of the chunks
it overlaps, weighted by overlap; its largest |g| is their largest. Where a packet cuts through a chunk, the chunk's
mean stands for both parts (single values are not recorded).

The papers (DLCP and MLT) give neither threshold nor statistic, so these rules are our choice:

* priority: layers are split into groups of about equal bytes, front layers are served first [ours];
* importance: a packet is important if its mean |g| reaches the tensor's threshold. The threshold is an exponential
  average over iterations of the (1 - f) quantile of packet means, estimated on a seeded sample of the packets [ours].

Results are vectorised over the packets of a tensor and cached, as all workers of a job replay the same trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwire.scenarios.arrays import AnyArray, Flags, Floats, Ints
from gradwire.scenarios.schema.policy import Tagging
from gradwire.traces.trace import CHUNK_ELEMENTS, Trace

SMALLEST_SAMPLE = 32  # packets: a quantile of fewer is unreliable; our choice


def packet_statistics(
    mean: AnyArray,
    largest: AnyArray,
    numel: int,
    elements_per_packet: int,
    *,
    first_element: int = 0,
    n_elements: int | None = None,
) -> tuple[Floats, Floats]:
    """Return (mean |g|, max |g|) of the packets of a message, float64 [packets] each.

    The message carries `n_elements` elements of a tensor from `first_element` on, by default all of them, in packets of
    `elements_per_packet`, the last one shorter. `mean` and `largest` are the tensor's [ceil(numel / 256)] chunk
    figures; the result has their scale. ValueError for a range outside the tensor.
    """
    count = numel - first_element if n_elements is None else n_elements
    if elements_per_packet < 1 or first_element < 0 or count < 1 or first_element + count > numel:
        span = f"{first_element} to {first_element + count}"
        raise ValueError(f"elements {span} of {numel} in packets of {elements_per_packet}")
    if len(mean) != -(-numel // CHUNK_ELEMENTS) or len(largest) != len(mean):
        raise ValueError(f"{len(mean)} means and {len(largest)} maxima for {numel} elements")
    end = first_element + count
    packet_starts = np.arange(first_element, end, elements_per_packet, dtype=np.int64)
    first_chunk, last_chunk = first_element // CHUNK_ELEMENTS, (end - 1) // CHUNK_ELEMENTS
    chunk_starts = np.arange(first_chunk + 1, last_chunk + 1, dtype=np.int64) * CHUNK_ELEMENTS
    # A piece is the overlap of one packet with one chunk; pieces of a packet lie side by side.
    if first_element % CHUNK_ELEMENTS == 0 and elements_per_packet % CHUNK_ELEMENTS == 0:
        piece_starts = np.concatenate([packet_starts[:1], chunk_starts])  # the usual case: packets of whole chunks
    else:
        piece_starts = np.union1d(packet_starts, chunk_starts)
    lengths = _lengths(piece_starts, end)
    chunk_of = piece_starts // CHUNK_ELEMENTS
    first_piece = np.searchsorted(piece_starts, packet_starts)
    totals = np.add.reduceat(mean[chunk_of].astype(np.float64) * lengths, first_piece)
    return totals / _lengths(packet_starts, end), np.maximum.reduceat(largest[chunk_of].astype(np.float64), first_piece)


def _lengths(starts: Ints, end: int) -> Ints:
    """Return the distance from each start to the next one, from the last one to `end`."""
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1] = end - starts[-1]
    return lengths


def layer_priorities(trace: Trace, classes: Sequence[int]) -> Ints:
    """Return a priority per tensor, int64 [T]; the front layers get classes[0]. Layers in forward order form groups of
    about equal bytes. A layer is not split: it joins the group that holds the middle of its bytes, so a layer larger
    than a group leaves some classes unused."""
    if not classes:
        raise ValueError("no priority classes given")
    group = np.minimum(twice_middles(trace) * len(classes) // (2 * trace.total_bytes), len(classes) - 1)
    return np.asarray(classes, dtype=np.int64)[group]


def twice_middles(trace: Trace) -> Ints:
    """Return for each tensor where the middle of its layer's bytes is, doubled to stay in integers, int64 [T]."""
    layer_bytes = trace.layer_bytes
    return (2 * np.cumsum(layer_bytes) - layer_bytes)[[tensor.layer for tensor in trace.tensors]]


class Tagger:
    """Importance of packets by the rules of a scenario's `tagging`.

    Without magnitude tagging all packets are important: marked rather than dropped, as ordinary ECN traffic. With it,
    in any tensor but those of the last `important_last_layers` layers, a packet is important if its mean |g| is above
    zero and reaches the threshold

        T(i) = ewma * T(i-1) + (1 - ewma) * q(i),    T(first iteration of a phase) = q(first),

    where q(i) is the (1 - important_fraction) quantile of packet means in iteration i, over a share `sample` of the
    tensor's packets but at least 32. With `important_rises` the fraction f of a layer with the middle of its bytes at x
    (0: front, 1: back) is x ** (1 / f - 1) instead, which is f on average.

    The current iteration is included: a sender has the gradient before it sends. The average restarts in each phase
    because the iterations between two phases were not recorded. The gradients of a batch are larger or smaller as a
    whole and a slow average lags behind: with f = 0.5, 48 to 68 % of the bundled trace's packets are important in an
    iteration with ewma = 0.9, and 45 to 59 % with 0.5.

    `random` draws packets with probability `important_fraction` instead. Results do not depend on the order of calls:
    draws are keyed by (seed, iteration, tensor), random tags by the range of elements as well.
    """

    def __init__(self, trace: Trace, tagging: Tagging, seed: int) -> None:
        self._trace = trace
        self._tagging = tagging
        self._seed = seed
        self._statistics: dict[tuple[int, int, int], Floats] = {}
        self._thresholds: dict[tuple[int, int, int], float] = {}
        self._answers: dict[tuple[int, int, int, int, int], Flags] = {}
        members_by_phase: dict[tuple[str, int], list[int]] = {}  # by (phase, rank)
        for iteration in trace.iterations:
            members_by_phase.setdefault((iteration.phase, iteration.rank), []).append(iteration.index)
        self._fractions = self._tensor_fractions()
        self._phase_of = {i: members for members in members_by_phase.values() for i in members}

    def important(self, iteration: int, tensor: int, first_element: int, n_elements: int, payload_bytes: int) -> Flags:
        """Return the importance of each packet of a message, bool [ceil(n_elements * element_bytes / payload_bytes)],
        read-only. The message carries `n_elements` elements of `tensor` in `iteration` from `first_element` on, in
        packets of `payload_bytes`, which must hold whole elements (ValueError otherwise)."""
        element_bytes = self._trace.tensors[tensor].element_bytes
        if payload_bytes < element_bytes or payload_bytes % element_bytes:
            raise ValueError(f"payload of {payload_bytes} bytes, elements of {element_bytes} bytes")
        key = (iteration, tensor, first_element, n_elements, payload_bytes)
        answer = self._answers.get(key)
        if answer is None:
            per_packet = payload_bytes // element_bytes
            answer = self._decide(iteration, tensor, first_element, n_elements, per_packet)
            answer.flags.writeable = False
            self._answers[key] = answer
        return answer

    def threshold(self, iteration: int, tensor: int, elements_per_packet: int) -> float:
        """Return T(iteration) of the class docstring, in the scale of the tensor's chunk figures."""
        key = (iteration, tensor, elements_per_packet)
        if key not in self._thresholds:
            ewma, threshold = self._tagging.ewma, None
            for earlier in self._phase_of[iteration]:
                step = (earlier, tensor, elements_per_packet)
                if step not in self._thresholds:
                    quantile = self._sampled_quantile(*step)
                    self._thresholds[step] = quantile if threshold is None else ewma * threshold + (1 - ewma) * quantile
                threshold = self._thresholds[step]
                if earlier == iteration:
                    break
        return self._thresholds[key]

    def _tensor_fractions(self) -> Floats:
        """Return the important fraction of each tensor, float64 [T]."""
        fraction = self._tagging.important_fraction
        if not self._tagging.important_rises or fraction in (0, 1):
            return np.full(len(self._trace.tensors), fraction)
        return (twice_middles(self._trace) / (2 * self._trace.total_bytes)) ** (1 / fraction - 1)

    def _decide(self, iteration: int, tensor: int, first: int, count: int, per_packet: int) -> Flags:
        tagging, info = self._tagging, self._trace.tensors[tensor]
        packets = -(-count // per_packet)
        last = info.layer >= len(self._trace.layers) - tagging.important_last_layers
        fraction = self._fractions[tensor]
        if not tagging.magnitude or last or fraction >= 1:
            return np.ones(packets, dtype=np.bool_)
        if tagging.random:
            draws = np.random.default_rng([self._seed, 1, iteration, tensor, first, count]).random(packets)
            return draws < fraction
        if fraction <= 0:
            return np.zeros(packets, dtype=np.bool_)
        if first == 0 and count == info.numel:
            mean = self._whole_tensor_means(iteration, tensor, per_packet)
        else:
            mean = self._packet_means(iteration, tensor, per_packet, first, count)
        return (mean >= self.threshold(iteration, tensor, per_packet)) & (mean > 0)

    def _packet_means(self, iteration: int, tensor: int, per_packet: int, first: int, count: int) -> Floats:
        mean, _ = packet_statistics(
            self._trace.chunk_mean(iteration, tensor),
            self._trace.chunk_max(iteration, tensor),
            self._trace.tensors[tensor].numel,
            per_packet,
            first_element=first,
            n_elements=count,
        )
        return mean

    def _whole_tensor_means(self, iteration: int, tensor: int, per_packet: int) -> Floats:
        """Return the packet means of the whole tensor."""
        key = (iteration, tensor, per_packet)
        if key not in self._statistics:
            numel = self._trace.tensors[tensor].numel
            self._statistics[key] = self._packet_means(iteration, tensor, per_packet, 0, numel)
        return self._statistics[key]

    def _sampled_quantile(self, iteration: int, tensor: int, per_packet: int) -> float:
        mean = self._whole_tensor_means(iteration, tensor, per_packet)
        size = max(int(len(mean) * self._tagging.sample), SMALLEST_SAMPLE)
        if size < len(mean):
            generator = np.random.default_rng([self._seed, 0, iteration, tensor])
            mean = mean[generator.integers(0, len(mean), size)]
        return _quantile(mean, 1 - self._fractions[tensor])


def _quantile(values: Floats, level: float) -> float:
    """Return the quantile with linear interpolation, several times as fast as NumPy's for small arrays."""
    ordered = np.sort(values)
    position = level * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (position - below) * (ordered[above] - ordered[below]))
