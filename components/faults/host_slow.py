"""A straggler."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.scenarios.schema.fault import HostFault


class HostSlow(HostFault):
    """A host computes more slowly: what workers begin to compute there meanwhile takes `factor` times as long: a
    layer, or as many as follow without anything to wait for or to send, as a whole forward pass in the first iteration
    and behind a barrier; and the time to the next gradient."""

    kind: Literal["host_slow"]
    factor: Annotated[float, Field(gt=1, le=1000, strict=True)]
    """How many times longer computing takes."""

    @property
    def slowness(self) -> float:
        return self.factor
