"""Incast: many hosts answer one at the same moment, which is what fills a single queue fastest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.experiment.traffic.base import Flows, Setting, in_batches, rounds
from gradwire.scenarios.errors import ScenarioError


def incast(setting: Setting) -> Iterator[Flows]:
    """Flows of an `Incast` table: `fan_in` senders, drawn for every burst among the hosts other than the receiver."""
    table = setting.table
    receiver = None if table.receiver is None else setting.index[table.receiver]
    others = setting.hosts if receiver is None else setting.hosts[setting.hosts != receiver]
    if table.fan_in > len(others) - (receiver is None):
        raise ScenarioError(
            f"needs {table.fan_in} senders, but {len(others) - (receiver is None)} hosts could send",
            f"{setting.where}.fan_in", "fewer",
        )  # fmt: skip
    return in_batches(_bursts(setting, receiver))


def _bursts(setting: Setting, receiver: int | None) -> Iterator[Flows]:
    table, rng = setting.table, setting.rng
    n = table.fan_in
    for number, begin in rounds(setting):
        to = receiver if receiver is not None else int(rng.choice(setting.hosts))
        src = np.sort(rng.choice(setting.hosts[setting.hosts != to], n, replace=False))
        yield Flows(
            src, np.full(n, to), np.full(n, table.size), np.full(n, begin), np.full(n, number),
            number * n + np.arange(n),
        )  # fmt: skip
