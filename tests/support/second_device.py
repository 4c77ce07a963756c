"""A second device that is none: tensors with their real values, for tests of what runs on a GPU where there is none.

    with SecondDevice() as device:
        model.to(device)          # from here on its parameters say that they are on cuda:0
        model(torch.ones(2, 3))   # DevicesMeet: the input is not

Inside, tensors are marked by their storage, which stays in the processor's memory; what is computed of marked ones is
marked; `device`, `to`, `cpu` and everything that is made with `device=` heed the mark. As on CUDA, an operation on
tensors of both devices is refused, unless what is on the CPU is a single number, and so is to make an array of what is
not on the CPU. Unlike there, places for indexing have to be on the device, too: CUDA would copy them, and wait. Values
are those of the CPU, random ones as well, so that a training in here has the bits of one outside.

Not seen are what only a real device has: memory, streams, algorithms that do not repeat, types that it has not got.
Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradwire.scenarios import lazily

DEVICE = torch.device("cuda:0")


class DevicesMeet(RuntimeError):
    """Tensors of two devices in one operation, or an array of what is on none."""


class Marks:
    """Which storages are on the device. The references keep their addresses from being used again."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def on(self, tensor: Tensor) -> bool:
        """Whether a tensor is."""
        return tensor.untyped_storage()._cdata in self._storages

    def put(self, tensor: Tensor) -> Tensor:
        """Put it there."""
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = StorageWeakRef(storage)
        return tensor


class Computing(TorchDispatchMode):
    """What is computed of what is on the device is there, too."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks, self.crossing = marks, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        there = [each for each in given if self.marks.on(each)]
        here = [each for each in given if each.dim() and not self.marks.on(each)]
        crossing = self.crossing or func.overloadpacket is torch.ops.aten.copy_
        if there and here and not crossing:
            shapes = [[tuple(each.shape) for each in some] for some in (there, here)]
            raise DevicesMeet(f"{func}: {shapes[0]} on {DEVICE}, {shapes[1]} on the CPU")
        found = func(*args, **(kwargs or {}))
        if there and not crossing:
            for each in tree_leaves(found):
                if isinstance(each, Tensor):
                    self.marks.put(each)
        return found


class Naming(TorchFunctionMode):
    """What Python asks of a tensor's device, and moves."""

    def __init__(self, marks: Marks, computing: Computing) -> None:
        super().__init__()
        self.marks, self.computing = marks, computing

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:
            return DEVICE if self.marks.on(args[0]) else torch.device("cpu")
        if func == Tensor.is_cuda.__get__:
            return self.marks.on(args[0])
        if func is Tensor.cpu:
            return self._moved(args[0], torch.device("cpu"))
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func in (Tensor.numpy, Tensor.__array__) and self.marks.on(args[0]):
            raise DevicesMeet(f"an array of {tuple(args[0].shape)} on {DEVICE}")
        if func is Tensor.__deepcopy__:  # copies storages, of which nothing is seen here
            copied = self._crossed(lambda: func(*args, **kwargs))
            return self.marks.put(copied) if self.marks.on(args[0]) else copied
        wanted = kwargs.get("device")
        if wanted is None:
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "device": "cpu"})
        return self.marks.put(made) if torch.device(wanted).type == DEVICE.type else made

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`Tensor.to(device)`, with a type or none; or `to(dtype)`, or `to(other)`."""
        wanted = kwargs.pop("device", None)
        first = args[0] if args else None
        if isinstance(first, Tensor):
            wanted, args = first.device, (first.dtype, *args[1:])
        elif isinstance(first, (torch.device, str)):
            wanted, args = first, args[1:]
        elif first is None:
            args = args[1:]
        kept = [each for each in args if isinstance(each, torch.dtype)]
        dtype = kwargs.get("dtype") or (kept[0] if kept else None)
        if dtype is not None and dtype != tensor.dtype:
            tensor = tensor.type(dtype)
        return tensor if wanted is None else self._moved(tensor, torch.device(wanted))

    def _moved(self, tensor: Tensor, device: torch.device) -> Tensor:
        if self.marks.on(tensor) == (device.type == DEVICE.type):
            return tensor
        copied = self._crossed(tensor.clone)
        return self.marks.put(copied) if device.type == DEVICE.type else copied

    def _crossed(self, work: Any) -> Any:
        self.computing.crossing = True
        try:
            return work()
        finally:
            self.computing.crossing = False


@contextmanager
def SecondDevice() -> Iterator[torch.device]:
    """In here there is a second device, "cuda:0"; see above."""
    marks = Marks()
    computing = Computing(marks)
    generator = torch.Generator
    with ExitStack() as stack:
        for owner in (torch, lazily.torch):  # the lazy one keeps what it was asked for
            stack.enter_context(patch.object(owner, "Generator", lambda device="cpu": generator("cpu"), create=True))
        stack.enter_context(patch("torch.cuda.is_available", lambda: True))
        stack.enter_context(patch("torch.cuda.synchronize", lambda device=None: None))
        stack.enter_context(patch("torch.cuda.get_device_name", lambda device=None: "a second device"))
        stack.enter_context(computing)
        stack.enter_context(Naming(marks, computing))
        yield DEVICE
