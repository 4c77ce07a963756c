"""Incast: many hosts answer one at the same moment, which is what fills a single queue fastest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from gradwire.experiment.traffic.base import Flows, Setting, in_batches, rounds
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.traffic import Repeated


class Incast(Repeated):
    """Bursts in which several hosts send to one at the same time."""

    kind: Literal["incast"]
    fan_in: Count
    """How many hosts send at once, drawn anew for every burst."""
    receiver: Annotated[str, Field(min_length=1)] | None = None
    """Host that receives, the same in every burst; absent: one of the hosts at random, another in every burst."""

    @property
    def named(self) -> Mapping[str, tuple[str, ...]]:
        return {} if self.receiver is None else {"receiver": (self.receiver,)}

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        yield from super().misfits(hosts)
        among = self.receiver is None or self.hosts == "all" or self.receiver in self.hosts
        if self.fan_in + among > hosts:
            what = f"needs {self.fan_in + among} hosts, but {hosts} take part"
            yield Mistake("fan_in", what, self.fan_in, f"at most {hosts - among}")

    def flows_of(self, setting: Setting) -> Iterator[Flows]:
        return in_batches(_bursts(setting, self))


def _bursts(setting: Setting, table: Incast) -> Iterator[Flows]:
    import numpy as np

    receiver = None if table.receiver is None else setting.index[table.receiver]
    rng = setting.rng
    n = table.fan_in
    for number, begin in rounds(setting, table):
        to = receiver if receiver is not None else int(rng.choice(setting.hosts))
        src = np.sort(rng.choice(setting.hosts[setting.hosts != to], n, replace=False))
        yield Flows(
            src, np.full(n, to), np.full(n, table.size), np.full(n, begin), np.full(n, number),
            number * n + np.arange(n),
        )  # fmt: skip
