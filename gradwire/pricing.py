"""Pricing: what the steps of a training would take at other rates, without training again.

Where workers make their steps together and a network loses nothing, what is learned does not depend on its rate. So a
training over an ideal network is done once, and the packet simulator plays some steps with as many bytes as its steps
have had in the mean, on the scenario's own network with links of each rate, which carries nothing else. The bytes are
spread over the model's tensors as its parameters are; what comes back is as much longer or shorter as the training
says. Nothing of it overlaps with computing. Where all steps are alike, as dense ones are, the clock is that of a
training over the simulator (claim C of the sets of systems holds them side by side).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from gradwire.scenarios.learned import PRICES, Learned
from gradwire.scenarios.output import replaced
from gradwire.scenarios.units import parse_time

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import TensorInfo

PLAYED = 20
"""Steps that are played, one after the other, of which the mean counts: connections that are kept look for their share
for some, and go on looking."""
SETTLED = 50
"""Steps after which workers of an asynchronous server come at equal distances."""
CLASSES = 10
"""That pictures of either kind are told apart in."""


def prices(folder: Path, scenario: Scenario, rates: Sequence[str], computing: str) -> dict[str, int]:
    """Picoseconds that a step of the training in a folder takes, by rate of all links; kept there.

    computing : how long a worker computes in a step.

    Raises
    ------
    ResultError
        There is no training in the folder.
    """
    place = folder / PRICES
    kept = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}
    found: dict[str, int] = kept.get(computing, {})
    if wanted := [rate for rate in rates if rate not in found]:
        learned = Learned.read(folder)
        workers = int(learned.summary["workers"])
        pushed, pulled = (
            fmean(row[name] for row in learned.steps) / workers for name in ("sent_bytes", "pulled_bytes")
        )
        found |= times_at(scenario, pushed, pulled, wanted, computing)
        with replaced(place) as partial:
            partial.write_text(json.dumps({**kept, computing: found}) + "\n", encoding="utf-8")
    return {rate: found[rate] for rate in rates}


def times_at(
    scenario: Scenario, pushed: float, pulled: float, rates: Sequence[str], computing: str
) -> dict[str, int]:
    """Picoseconds of a step in which every worker pushes and pulls so many bytes, by rate of all links."""
    times = turn_times if _one_by_one(scenario) else step_times
    return times(scenario, pushed, pulled, rates, int(parse_time(computing)))


def step_times(
    scenario: Scenario, pushed: float, pulled: float, rates: Sequence[str], computing_ps: int = 0
) -> dict[str, int]:
    """Picoseconds of a step in which every worker pushes and pulls so many bytes after it has computed, by rate."""
    import torch

    from gradwire.scenarios.load import build_scenario
    from gradwire.sim.session import Session
    from gradwire.training.encoded import Encoded
    from gradwire.training.network import Pushed
    from gradwire.training.simulated import Simulated

    tables = {key: value for key, value in scenario.as_written().items() if key not in ("policy", "training")}
    infos, workers = spread(_tensors(scenario), pushed), scenario.job[0].workers
    encoded = [[Encoded((torch.ones(info.numel),)) for info in infos]] * workers
    ratio = pulled / (4 * sum(info.numel for info in infos))
    back = [4 * ceil(info.numel * ratio) for info in infos]
    found: dict[str, int] = {}
    for rate in rates:
        at = build_scenario({**tables, "link": {**tables.get("link", {}), "rate": rate}}, f"{scenario.name} at {rate}")
        session = Session(at)
        network = Simulated(session)
        rounds = [Pushed(step, 0, network.payload, infos, encoded, back=lambda: back) for step in range(PLAYED)]
        played = [network.carry(each) for each in rounds]
        found[rate] = computing_ps + round(fmean(each.time_ps for each in played))
        session.close()
    return found


def turn_times(
    scenario: Scenario, pushed: float, pulled: float, rates: Sequence[str], computing_ps: int
) -> dict[str, int]:
    """The same of an asynchronous server: of as many turns as there are workers, once they have fallen into step.

    Workers compute for equally long and take turns at the server's link, so that they come in turn at every rate: what
    is learned at one is what is learned at all.
    """
    from gradwire.scenarios.units import parse_rate
    from gradwire.training.served.pace import Pace, marched

    workers = scenario.job[0].workers
    found = {}
    for rate in rates:
        speed = int(parse_rate(rate))
        pace = Pace((computing_ps,), speed, speed)
        turns = [steps * workers for steps in (SETTLED, 2 * SETTLED)]
        (early, _), (late, order) = (marched(pace, workers, each, round(pushed), round(pulled)) for each in turns)
        assert order == [turn % workers for turn in range(len(order))], "not in turn"
        found[rate] = (late - early) // SETTLED
    return found


def spread(infos: Sequence[TensorInfo], nbytes: float) -> list[TensorInfo]:
    """Tensors that hold so many bytes of float32 together, each as large a part of them as its parameters are of all.

    Sums are rounded, not parts, so that nothing is gained or lost but by what would be less than a value.
    """
    from dataclasses import replace

    whole, total, found, before = sum(info.numel for info in infos), 0, [], 0
    for info in infos:
        total += info.numel
        until = round(total / whole * nbytes / 4)
        if until > before:
            found.append(replace(info, shape=(until - before,), numel=until - before))
        before = until
    return found


def _tensors(scenario: Scenario) -> list[TensorInfo]:
    """Those of the scenario's model."""
    from gradwire.training.asked import model_kind, table_of
    from gradwire.training.trainer import tensors_of

    return tensors_of(model_kind(table_of(scenario)).build(CLASSES))


def _one_by_one(scenario: Scenario) -> bool:
    """Whether workers push when they are ready and not together."""
    from gradwire.training.systems.asynchronous import Unsynchronised

    assert scenario.training is not None
    return isinstance(scenario.training.system, Unsynchronised)
