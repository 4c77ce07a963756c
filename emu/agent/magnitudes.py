"""Real gradient bytes from a trace, which has the magnitudes of gradients but not their values.

For every run of 256 elements the trace knows the mean and the largest |g|. Values are drawn such that the mean is just
that and nothing is larger: cubes of uniform draws, which have the few large values among many small ones that gradients
have, scaled down to the mean or drawn together towards the maximum, and a random sign (our choice).

Draws depend on nothing but (seed, job, worker, captured iteration, tensor) and the place of the element, so that any
host can make any part of any gradient, and so can whoever checks the outcome.

Reading a trace takes more than an agent should import. So what is needed of it is written beforehand, by `prepare`, as
plain arrays that agents map into memory.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace

RUN = 256
"""Elements of a run, as traces have them."""

WORDS = RUN // 4
"""Random words of 64 bits that a run takes: 16 bits for every element."""

TYPES: dict[int, np.dtype[np.floating]] = {2: np.dtype(np.float16), 4: np.dtype(np.float32), 8: np.dtype(np.float64)}
"""By bytes of an element; bfloat16 travels as float16, since numpy has none."""

Floats = NDArray[np.float32]


def prepare(traces: Sequence[Trace], folder: str | Path) -> tuple[str, ...]:
    """Write what agents need of every trace to a folder of its own in `folder`; returns those."""
    written = []
    for number, trace in enumerate(traces):
        place = Path(folder) / f"trace-{number}"
        place.mkdir(parents=True)
        for name, of in (("mean", trace.chunk_mean), ("max", trace.chunk_max)):
            rows = [np.concatenate([of(i, t) for t in range(len(trace.tensors))]) for i in trace.sampled]
            np.save(place / f"{name}.npy", np.stack(rows))
        about = {
            "numel": [tensor.numel for tensor in trace.tensors],
            "element_bytes": [tensor.element_bytes for tensor in trace.tensors],
            "exponent": [tensor.scale_exponent for tensor in trace.tensors],
            "row": [trace.sampled.index(trace.sample_of(i)) for i in range(len(trace.iterations))],
        }
        (place / "about.json").write_text(json.dumps(about))
        written.append(str(place))
    return tuple(written)


class Magnitudes:
    """What `prepare` has written of one trace.

    Attributes
    ----------
    numel, types : elements of every tensor, and their type.
    """

    def __init__(self, folder: str | Path) -> None:
        about = json.loads((Path(folder) / "about.json").read_text())
        self.numel: list[int] = about["numel"]
        self.types: list[np.dtype[np.floating]] = [TYPES[size] for size in about["element_bytes"]]
        self._exponent: list[int] = about["exponent"]
        self._row: list[int] = about["row"]
        self._mean = np.load(Path(folder) / "mean.npy", mmap_mode="r")
        self._max = np.load(Path(folder) / "max.npy", mmap_mode="r")
        self._offset = np.concatenate([[0], np.cumsum([-(-n // RUN) for n in self.numel])]).tolist()

    def widest(self, tensors: Sequence[int]) -> np.dtype[np.floating]:
        """The type as which these tensors travel together; of what is no gradient, float32."""
        found = self.types[tensors[0]] if tensors else np.dtype(np.float32)
        for tensor in tensors:
            if self.types[tensor].itemsize > found.itemsize:
                found = self.types[tensor]
        return found

    def runs(self, captured: int, tensor: int, begin: int, end: int) -> tuple[Floats, Floats]:
        """(mean |g|, max |g|) of runs `begin` to `end` of a tensor, float32."""
        row, at = self._row[captured], self._offset[tensor]
        scale = -self._exponent[tensor]
        found = []
        for values in (self._mean, self._max):
            part = values[row, at + begin : at + end].astype(np.float64)
            found.append(np.ldexp(part, scale).astype(np.float32))
        return found[0], found[1]

    def gradient(
        self, seed: int, job: str, worker: int, captured: int, tensor: int, first: int, count: int
    ) -> NDArray[np.floating]:
        """Elements `first` to `first + count` of a gradient, in the tensor's type."""
        begin, end = first // RUN, -(-(first + count) // RUN)
        mean, largest = self.runs(captured, tensor, begin, end)
        largest = np.maximum(mean, largest)  # both are rounded
        words = _words((seed, zlib.crc32(job.encode()), worker, captured, tensor), begin, end)
        bits = words.view(np.uint16).reshape(-1, RUN)
        draws = (bits >> 1).astype(np.float32)
        draws += np.float32(0.5)
        draws *= np.float32(1 / (1 << 15))
        draws *= draws * draws
        own = np.full(end - begin, RUN, dtype=np.float32)
        rest = self.numel[tensor] - (end - 1) * RUN
        if rest < RUN:
            own[-1] = rest
            draws[-1, rest:] = 0
        factor, offset = _to_mean(draws.sum(axis=1) / own, mean, largest)
        draws *= factor[:, None]
        draws += offset[:, None]
        draws.view(np.uint32)[...] ^= (bits & 1).astype(np.uint32) << 31
        values = draws.reshape(-1)[first - begin * RUN :][:count]
        return values.astype(self.types[tensor], copy=False)


def _words(key: tuple[int, ...], begin: int, end: int) -> NDArray[np.uint64]:
    """The random words of runs `begin` to `end`, wherever one begins."""
    philox = np.random.Philox(
        key=np.random.SeedSequence(key).generate_state(2, np.uint64),
        counter=[begin * (WORDS // 4), 0, 0, 0],  # four words at a time
    )
    return np.asarray(philox.random_raw((end - begin) * WORDS), dtype=np.uint64)


def _to_mean(drawn: Floats, mean: Floats, largest: Floats) -> tuple[Floats, Floats]:
    """(factor, offset) per run that give values in (0, 1) with mean `drawn` the mean `mean`, none above `largest`."""
    share = np.divide(mean, largest, out=np.zeros_like(mean), where=largest > 0)
    down = drawn >= share
    together = (1 - share) / (1 - drawn)  # towards the maximum
    factor = np.where(down, share / drawn, together) * largest
    offset = np.where(down, 0, 1 - together) * largest
    return factor.astype(np.float32), offset.astype(np.float32)
