"""Declares the traffic `incast`, and generates its bursts, in which many hosts send to one at the same moment. This
fills a single queue fastest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.traffic import RepeatedTraffic
from gradwire.workload.traffic.base import Flows, TrafficSetting, in_batches, rounds, simultaneous


class Incast(RepeatedTraffic):
    """Bursts in which several hosts send to one at the same time."""

    kind: Literal["incast"]
    fan_in: Count
    """Number of hosts that send at once, drawn again for every burst."""
    receiver: Annotated[str, Field(min_length=1)] | None = None
    """Receiving host of every burst; if absent, a random host for each burst."""

    @property
    def named_hosts(self) -> Mapping[str, tuple[str, ...]]:
        return {} if self.receiver is None else {"receiver": (self.receiver,)}

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        yield from super().misfits(hosts)
        includes_receiver = self.receiver is None or self.hosts == "all" or self.receiver in self.hosts
        if self.fan_in + includes_receiver > hosts:
            what = f"needs {self.fan_in + includes_receiver} hosts, but {hosts} take part"
            yield Mistake("fan_in", what, self.fan_in, f"at most {hosts - includes_receiver}")

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        return in_batches(self._bursts(setting))

    def _bursts(self, setting: TrafficSetting) -> Iterator[Flows]:
        receiver = None if self.receiver is None else setting.index[self.receiver]
        rng, n = setting.rng, self.fan_in
        for number, begin in rounds(setting, self):
            destination = receiver if receiver is not None else int(rng.choice(setting.hosts))
            src = np.sort(rng.choice(setting.hosts[setting.hosts != destination], n, replace=False))
            yield simultaneous(src, np.full(n, destination), self.size, begin, number, number * n + np.arange(n))
