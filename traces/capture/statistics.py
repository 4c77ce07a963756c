"""Computes mean, maximum and root mean square per chunk of 256 gradient elements, and stores whole gradients in
temporary files.

The figures are computed on the gradient's device, so that only a few numbers leave it, after the step: nothing here
makes the device wait, except storing whole gradients.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gradwire.traces.trace import CHUNK_ELEMENTS

CACHED_ROWS = 1024  # chunks that fit in a processor's cache: a MiB of float32; our choice [measured]
_HALF = (torch.float16, torch.bfloat16)


def summarise(gradient: torch.Tensor) -> torch.Tensor:
    """Return mean |g|, max |g| and root of the mean g**2 per chunk, [3, ceil(numel / 256)] on the gradient's device.

    Chunks are 256 elements in row-major order (whatever the order in memory, as with channels-last). Half precision is
    computed in float32, other types in their own. The squares are those of g / max |g|, so that gradients of 1e-30 or
    1e30 are not lost.
    """
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    flat = gradient.detach().reshape(-1)
    whole = flat.numel() // CHUNK_ELEMENTS * CHUNK_ELEMENTS
    rows = flat[:whole].view(-1, CHUNK_ELEMENTS)
    # On a processor, six passes over 100 MB are bound by memory; passes over a MiB stay in the cache.
    block = CACHED_ROWS * torch.get_num_threads()  # shared by the threads
    parts = [*(rows.split(block) if rows.device.type == "cpu" else [rows]), flat[whole:].view(1, -1)]
    return torch.cat([_figures(part) for part in parts if part.numel()], dim=1)


def _figures(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.abs()
    if rows.dtype in _HALF:
        rows = rows.to(torch.float32)
    largest = rows.amax(1)
    mean = rows.mean(1)
    unit = torch.where(largest > 0, largest, torch.ones_like(largest))
    root = rows.div_(unit.unsqueeze(1)).square_().mean(1).sqrt_() * largest
    return torch.stack([mean, largest, root])


class RawFolder:
    """Temporary files of raw gradients by step and parameter, until the trace numbers them. `folder` must exist; the
    caller removes its content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, step: int, parameter: int, gradient: torch.Tensor, scale: float = 1.0) -> None:
        """Write the gradient, divided by `scale`; a later one of the same step and parameter replaces it."""
        dense = (gradient.to_dense() if gradient.is_sparse else gradient).detach()
        if dense.dtype == torch.bfloat16:  # NumPy has none
            dense = dense.to(torch.float32)
        values = np.ascontiguousarray(dense.cpu().numpy())
        if scale != 1.0:
            values = (values / scale).astype(values.dtype)
        np.save(self._file(step, parameter), values, allow_pickle=False)

    def drop(self, step: int) -> None:
        """Remove the gradients of a step that was not recorded after all."""
        for file in self._folder.glob(f"{step}-*.npy"):
            file.unlink()

    def arrange(self, steps: dict[int, int], tensors: dict[int, int], shapes: dict[int, torch.Size]) -> Path:
        """Rename the files as `gradwire.traces.storage.writer` expects, and return their folder. Arguments: the
        iteration of each step, the tensor of each parameter, the shape of each parameter. A missing gradient becomes
        zeros of its shape."""
        from gradwire.traces.storage.writer import RAW, raw_folder

        for step, iteration in steps.items():
            folder = raw_folder(self._folder, iteration)
            folder.mkdir(parents=True)
            for parameter, tensor in tensors.items():
                target = folder / f"{tensor:05d}.npy"
                file = self._file(step, parameter)
                if file.exists():
                    file.rename(target)
                else:
                    np.save(target, np.zeros(shapes[parameter], dtype=np.float32), allow_pickle=False)
        return self._folder / RAW

    def _file(self, step: int, parameter: int) -> Path:
        return self._folder / f"{step}-{parameter}.npy"
