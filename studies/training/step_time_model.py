"""Computes the step times of a training run at other link rates, by simulating some steps without training again.

If workers step together and nothing is lost, the outcome does not depend on the network's rate. So a run over an ideal
network is trained once, and the packet simulator runs some steps with its mean bytes per step, on the scenario's own
network with links of each rate and no other traffic. The bytes are spread over the model's tensors in proportion to
their parameters; the ratio of pulled to pushed bytes is that of the training run. Nothing overlaps with computing. If
all steps are alike, as dense ones are, the clock equals that of training over the simulator (claim C of the sets of
systems compares them).

Workers of an asynchronous server compute for equally long, and come one by one: their turns are simulated, push by push
and pull by pull. The staleness equals the number of other workers at every rate, except in the first turns, and the
order of workers does not matter.
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

from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.result_store.training_result import PRICES, TrainingResult
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.units import parse_time

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import TensorInfo
    from gradwire.training.networks.simulated_async import SimulatedTurns

SIMULATED_STEPS = 20
"""Simulated steps, one after the other, whose mean counts: persistent connections take some to find their share, and
keep adapting."""
SIMULATED_ASYNC_STEPS = 60
"""Simulated steps of an asynchronous server, whose mean counts: workers begin together, and need some twenty steps
until their pushes are evenly spaced."""
CLASSES = 10
"""Classes of either kind of pictures."""


def cached_step_times(folder: Path, scenario: Scenario, rates: Sequence[str], computing: str) -> dict[str, int]:
    """Return the picoseconds of a step of the training run in a folder, by rate of all links; cached there.

    computing : compute time of a worker in a step.

    Raises ResultError if there is no training run in the folder.
    """
    path = folder / PRICES
    cached = _read_cache(path)
    times: dict[str, int] = cached.get(computing, {})
    if missing := [rate for rate in rates if rate not in times]:
        result = TrainingResult.read(folder)
        workers = int(result.summary["workers"])
        pushed, pulled = (fmean(row[name] for row in result.steps) / workers for name in ("sent_bytes", "pulled_bytes"))
        times |= step_times_at(scenario, pushed, pulled, missing, computing)
        with atomic_replace(path) as partial:
            partial.write_text(json.dumps({**cached, computing: times}) + "\n", encoding="utf-8")
    return {rate: times[rate] for rate in rates}


def step_times_at(
    scenario: Scenario, pushed: float, pulled: float, rates: Sequence[str], computing: str
) -> dict[str, int]:
    """Return the picoseconds of a step in which every worker pushes and pulls these bytes, by rate of all links."""
    assert scenario.training is not None
    is_synchronous = getattr(scenario.training.system, "together", True)
    times = synchronous_step_times if is_synchronous else asynchronous_step_times
    return times(scenario, pushed, pulled, rates, int(parse_time(computing)))


def synchronous_step_times(
    scenario: Scenario, pushed: float, pulled: float, rates: Sequence[str], computing_ps: int = 0
) -> dict[str, int]:
    """Return the picoseconds of a step in which every worker computes, then pushes and pulls these bytes, by rate."""
    import torch

    from gradwire.sim.sessions.session import Session
    from gradwire.training.exchange.encoded_tensors import Encoded
    from gradwire.training.networks.builtin_networks import Pushed
    from gradwire.training.networks.simulated import Simulated

    times: dict[str, int] = {}
    for rate, at, infos, answers in _scenarios_by_rate(scenario, pushed, pulled, rates):
        encoded = [[Encoded((torch.ones(info.numel),)) for info in infos]] * at.job[0].workers
        back: Callable[[], Sequence[int]] = partial(list, answers)
        session = Session(at)
        network = Simulated(session)
        rounds = [Pushed(step, 0, network.payload, infos, encoded, back=back) for step in range(SIMULATED_STEPS)]
        played = [network.carry(answer) for answer in rounds]
        times[rate] = computing_ps + round(fmean(answer.time_ps for answer in played))
        session.close()
    return times


def asynchronous_step_times(
    scenario: Scenario, pushed: float, pulled: float, rates: Sequence[str], computing_ps: int
) -> dict[str, int]:
    """Return the same for an asynchronous server: of as many turns as there are workers."""
    from gradwire.sim.sessions.async_session import AsyncSession
    from gradwire.training.networks.simulated_async import SimulatedTurns

    times = {}
    for rate, at, infos, back in _scenarios_by_rate(scenario, pushed, pulled, rates):
        turns = AsyncSession(at)
        times[rate] = _merge_time(SimulatedTurns(turns), infos, back, computing_ps) // SIMULATED_ASYNC_STEPS
        turns.close()
    return times


def _merge_time(network: SimulatedTurns, infos: Sequence[TensorInfo], back: Sequence[int], computing_ps: int) -> int:
    """Return the time when TURNED steps' turns have been merged, each of a worker that computes, pushes and pulls."""
    import torch

    from gradwire.training.exchange.encoded_tensors import Encoded
    from gradwire.training.networks.builtin_networks import Pushed

    row = [Encoded((torch.ones(info.numel),)) for info in infos]
    ready = [(computing_ps, worker) for worker in range(network.workers)]  # a heap as it is
    turns, now = [0] * network.workers, 0
    while sum(turns) < SIMULATED_ASYNC_STEPS * network.workers:
        arrival = network.next(ready[0][0] + 1 if ready else None)
        if arrival is None:
            now, worker = heappop(ready)
            network.push(worker, turns[worker], Pushed(turns[worker], 0, network.payload, infos, [row]), now)
            continue
        now = arrival.time_ps
        if arrival.pushed:
            turns[arrival.worker] += 1
            network.pull(arrival.worker, turns[arrival.worker], infos, back, now)
        else:
            heappush(ready, (now + computing_ps, arrival.worker))
    return now


def _scenarios_by_rate(
    scenario: Scenario, pushed: float, pulled: float, rates: Sequence[str]
) -> Iterator[tuple[str, Scenario, list[TensorInfo], list[int]]]:
    """Yield the scenario at each rate, the tensors that hold what is pushed, and the bytes that come back of each."""
    from gradwire.scenarios.loading.load import build_scenario

    tables = {key: value for key, value in scenario.as_written().items() if key not in ("policy", "training")}
    infos = scale_tensors(_tensors(scenario), pushed)
    ratio = pulled / (4 * sum(info.numel for info in infos))
    for rate in rates:
        at = build_scenario({**tables, "link": {**tables.get("link", {}), "rate": rate}}, f"{scenario.name} at {rate}")
        yield rate, at, infos, [4 * ceil(info.numel * ratio) for info in infos]


def scale_tensors(infos: Sequence[TensorInfo], nbytes: float) -> list[TensorInfo]:
    """Return tensors that hold `nbytes` of float32 in total, in proportion to their parameters. Cumulative sums are
    rounded, not parts, so that the total is exact to less than a value."""
    from dataclasses import replace

    total_parameters, total, scaled, before = sum(info.numel for info in infos), 0, [], 0
    for info in infos:
        total += info.numel
        until = round(total / total_parameters * nbytes / 4)
        if until > before:
            scaled.append(replace(info, shape=(until - before,), numel=until - before))
        before = until
    return scaled


def _tensors(scenario: Scenario) -> list[TensorInfo]:
    """Return the tensors of the scenario's model."""
    from gradwire.training.scenario_checks import model_kind, table_of
    from gradwire.training.trainer import tensors_of

    return tensors_of(model_kind(table_of(scenario), scenario.folder).build(CLASSES))


def _read_cache(path: Path) -> dict[str, dict[str, int]]:
    """Return a file's times by compute time and rate; empty if it is missing or damaged."""
    try:
        cached = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    tables = isinstance(cached, dict) and all(isinstance(times, dict) for times in cached.values())
    is_sound = tables and all(type(time) is int and time >= 0 for times in cached.values() for time in times.values())
    return cached if is_sound else {}
