"""Tensor schedulers: in which order a host releases messages that are ready to its network interface.

One scheduler object serves one sending host of one job.  It is offered every message when it is ready and
told of every delivery; it hands messages on by calling `release`.  A scheduler orders *messages*; the order
of packets of different priority within the network interface is the fabric's.

To add one: a file with a class that has these two methods, and a line in SCHEDULERS.
"""

from __future__ import annotations

from gradwire.sim.schedulers.base import Release, Scheduler
from gradwire.sim.schedulers.fifo import Fifo
from gradwire.sim.schedulers.layer import LayerOrder

SCHEDULERS: dict[str, type[Scheduler]] = {
    "fifo": Fifo,
    "layer": LayerOrder,
}
"""By the job's `order`."""

__all__ = ["SCHEDULERS", "Fifo", "LayerOrder", "Release", "Scheduler"]
