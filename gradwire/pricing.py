"""Pricing: what the steps of a training would take at other rates, without training again.

Where workers make their steps together and a network loses nothing, what is learned does not depend on its rate. So a
training over an ideal network is done once, and the packet simulator plays some steps with as many bytes as its steps
have had in the mean, on the scenario's own network with links of each rate, which carries nothing else. The bytes are
spread over the model's tensors as its parameters are; what comes back is as much longer or shorter as the training
says. Nothing of it overlaps with computing. Where all steps are alike, as dense ones are, the clock is that of a
training over the simulator (claim C of the sets of systems holds them side by side).

Workers of an asynchronous server compute for equally long, and come one by one: their turns are played, push by push
and pull by pull. Each is as many updates behind as there are others, at every rate, but for the first turns, and in
which order they come matters no more than who they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.learned import PRICES, Learned
from gradwire.scenarios.output import replaced
from gradwire.scenarios.units import parse_time

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import TensorInfo
    from gradwire.training.simulated_turns import SimulatedTurns

PLAYED = 20
"""Steps that are played, one after the other, of which the mean counts: connections that are kept look for their share
for some, and go on looking."""
TURNED = 60
"""Steps of an asynchronous server that are played, of which the mean counts: as workers begin together, their first
pushes come together as well, and they take some twenty steps to come at equal distances."""
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
    kept = _kept(place)
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

    from gradwire.sim.session import Session
    from gradwire.training.encoded import Encoded
    from gradwire.training.network import Pushed
    from gradwire.training.simulated import Simulated

    found: dict[str, int] = {}
    for rate, at, infos, answers in _priced(scenario, pushed, pulled, rates):
        encoded = [[Encoded((torch.ones(info.numel),)) for info in infos]] * at.job[0].workers
        back: Callable[[], Sequence[int]] = partial(list, answers)
        session = Session(at)
        network = Simulated(session)
        rounds = [Pushed(step, 0, network.payload, infos, encoded, back=back) for step in range(PLAYED)]
        played = [network.carry(each) for each in rounds]
        found[rate] = computing_ps + round(fmean(each.time_ps for each in played))
        session.close()
    return found


def turn_times(
    scenario: Scenario, pushed: float, pulled: float, rates: Sequence[str], computing_ps: int
) -> dict[str, int]:
    """The same of an asynchronous server: of as many turns as there are workers."""
    from gradwire.sim.turns import Turns
    from gradwire.training.simulated_turns import SimulatedTurns

    found = {}
    for rate, at, infos, back in _priced(scenario, pushed, pulled, rates):
        turns = Turns(at)
        found[rate] = _merged(SimulatedTurns(turns), infos, back, computing_ps) // TURNED
        turns.close()
    return found


def _merged(network: SimulatedTurns, infos: Sequence[TensorInfo], back: Sequence[int], computing_ps: int) -> int:
    """When so many steps' turns have been merged, each of a worker that computes, pushes and pulls."""
    import torch

    from gradwire.training.encoded import Encoded
    from gradwire.training.network import Pushed

    row = [Encoded((torch.ones(info.numel),)) for info in infos]
    ready = [(computing_ps, worker) for worker in range(network.workers)]  # a heap as it is
    turns, now = [0] * network.workers, 0
    while sum(turns) < TURNED * network.workers:
        came = network.next(ready[0][0] + 1 if ready else None)
        if came is None:
            now, worker = heappop(ready)
            network.push(worker, turns[worker], Pushed(turns[worker], 0, network.payload, infos, [row]), now)
            continue
        now = came.time_ps
        if came.pushed:
            turns[came.worker] += 1
            network.pull(came.worker, turns[came.worker], infos, back, now)
        else:
            heappush(ready, (now + computing_ps, came.worker))
    return now


def _priced(
    scenario: Scenario, pushed: float, pulled: float, rates: Sequence[str]
) -> Iterator[tuple[str, Scenario, list[TensorInfo], list[int]]]:
    """The scenario at each rate, the tensors that hold what is pushed, and the bytes that come back of each."""
    from gradwire.scenarios.load import build_scenario

    tables = {key: value for key, value in scenario.as_written().items() if key not in ("policy", "training")}
    infos = spread(_tensors(scenario), pushed)
    ratio = pulled / (4 * sum(info.numel for info in infos))
    for rate in rates:
        at = build_scenario({**tables, "link": {**tables.get("link", {}), "rate": rate}}, f"{scenario.name} at {rate}")
        yield rate, at, infos, [4 * ceil(info.numel * ratio) for info in infos]


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

    return tensors_of(model_kind(table_of(scenario), scenario.folder).build(CLASSES))


def _one_by_one(scenario: Scenario) -> bool:
    """Whether workers push when they are ready and not together."""
    assert scenario.training is not None
    return not getattr(scenario.training.system, "together", True)


def _kept(place: Path) -> dict[str, dict[str, int]]:
    """Return the times of a file by computing and rate, none from a file that is missing or damaged."""
    try:
        kept = parse_json(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    tables = isinstance(kept, dict) and all(isinstance(times, dict) for times in kept.values())
    is_sound = tables and all(type(time) is int and time >= 0 for times in kept.values() for time in times.values())
    return kept if is_sound else {}
