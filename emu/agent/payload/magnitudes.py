"""Draws gradient values for agents from the mean and maximum magnitudes in a trace, which stores no values.

For every run of 256 elements the trace has the mean and the largest |g|. Values are drawn with exactly that mean and
none larger than the maximum: cubes of uniform draws (few large values among many small ones, as in gradients), scaled
down to the mean or contracted towards the maximum, with a random sign (our choice).

Draws depend only on (seed, job, worker, captured iteration, tensor) and the index of the element, so that any host can
make any part of any gradient, and so can the verification.

An agent should not import what reading a trace needs, so `prepare` writes plain arrays that agents map into memory.
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
"""Elements of a run, as in traces."""

WORDS = RUN // 4
"""Random 64-bit words per run: 16 bits per element."""

TYPES: dict[int, np.dtype[np.floating]] = {2: np.dtype(np.float16), 4: np.dtype(np.float32), 8: np.dtype(np.float64)}
"""Types by bytes of an element; bfloat16 is sent as float16, since NumPy has none."""

Floats = NDArray[np.float32]


def prepare(traces: Sequence[Trace], folder: str | Path) -> tuple[str, ...]:
    """Write the data of each trace for agents to a new folder in `folder`; return these folders."""
    folders = []
    for number, trace in enumerate(traces):
        trace_folder = Path(folder) / f"trace-{number}"
        trace_folder.mkdir(parents=True)
        for name, values_of in (("mean", trace.chunk_mean), ("max", trace.chunk_max)):
            rows = [np.concatenate([values_of(i, t) for t in range(len(trace.tensors))]) for i in trace.sampled]
            np.save(trace_folder / f"{name}.npy", np.stack(rows))
        about = {
            "numel": [tensor.numel for tensor in trace.tensors],
            "element_bytes": [tensor.element_bytes for tensor in trace.tensors],
            "exponent": [tensor.scale_exponent for tensor in trace.tensors],
            "row": [trace.sampled.index(trace.sample_of(i)) for i in range(len(trace.iterations))],
        }
        (trace_folder / "about.json").write_text(json.dumps(about))
        folders.append(str(trace_folder))
    return tuple(folders)


class Magnitudes:
    """The data that `prepare` has written of one trace.

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
        """Return the type in which these tensors are sent together; float32 if there are none."""
        widest = self.types[tensors[0]] if tensors else np.dtype(np.float32)
        for tensor in tensors:
            if self.types[tensor].itemsize > widest.itemsize:
                widest = self.types[tensor]
        return widest

    def runs(self, captured: int, tensor: int, begin: int, end: int) -> tuple[Floats, Floats]:
        """Return (mean |g|, max |g|) of runs `begin` to `end` of a tensor, float32."""
        row, offset = self._row[captured], self._offset[tensor]
        scale = -self._exponent[tensor]
        arrays = []
        for values in (self._mean, self._max):
            part = values[row, offset + begin : offset + end].astype(np.float64)
            arrays.append(np.ldexp(part, scale).astype(np.float32))
        return arrays[0], arrays[1]

    def gradient(
        self, seed: int, job: str, worker: int, captured: int, tensor: int, first: int, count: int
    ) -> NDArray[np.floating]:
        """Return elements `first` to `first + count` of a gradient, in the tensor's type."""
        begin, end = first // RUN, -(-(first + count) // RUN)
        mean, largest = self.runs(captured, tensor, begin, end)
        largest = np.maximum(mean, largest)  # both are rounded
        words = _words((seed, zlib.crc32(job.encode()), worker, captured, tensor), begin, end)
        bits = words.view(np.uint16).reshape(-1, RUN)
        draws = (bits >> 1).astype(np.float32)
        draws += np.float32(0.5)
        draws *= np.float32(1 / (1 << 15))
        draws *= draws * draws
        counts = np.full(end - begin, RUN, dtype=np.float32)
        rest = self.numel[tensor] - (end - 1) * RUN
        if rest < RUN:
            counts[-1] = rest
            draws[-1, rest:] = 0
        factor, offset = _to_mean(draws.sum(axis=1) / counts, mean, largest)
        draws *= factor[:, None]
        draws += offset[:, None]
        draws.view(np.uint32)[...] ^= (bits & 1).astype(np.uint32) << 31
        values = draws.reshape(-1)[first - begin * RUN :][:count]
        return values.astype(self.types[tensor], copy=False)


def _words(key: tuple[int, ...], begin: int, end: int) -> NDArray[np.uint64]:
    """Return the random words of runs `begin` to `end`."""
    philox = np.random.Philox(
        key=np.random.SeedSequence(key).generate_state(2, np.uint64),
        counter=[begin * (WORDS // 4), 0, 0, 0],  # four words at a time
    )
    return np.asarray(philox.random_raw((end - begin) * WORDS), dtype=np.uint64)


def _to_mean(drawn: Floats, mean: Floats, largest: Floats) -> tuple[Floats, Floats]:
    """Return (factor, offset) per run that map values in (0, 1) from mean `drawn` to `mean`, none above `largest`."""
    share = np.divide(mean, largest, out=np.zeros_like(mean), where=largest > 0)
    down = drawn >= share
    together = (1 - share) / (1 - drawn)  # towards the maximum
    factor = np.where(down, share / drawn, together) * largest
    offset = np.where(down, 0, 1 - together) * largest
    return factor.astype(np.float32), offset.astype(np.float32)
