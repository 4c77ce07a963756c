"""torch, imported at its first use: tables of reducers and checks of scenarios must not load it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _LazyTorch:
        def __getattr__(self, name: str) -> Any:
            import torch

            setattr(self, name, getattr(torch, name))  # not searched again: encoding time counts
            return getattr(torch, name)

    torch = _LazyTorch()
