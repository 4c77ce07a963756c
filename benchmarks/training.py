"""Runs `gradwire bench training`, which compares the CPU time of a training run's steps with that of plain PyTorch.

Steps of one model with the same total number of images, alternating in one process on one thread of torch; CPU time is
measured:

* `plain`: PyTorch's forward and backward pass over all images at once, and SGD; the reference of the others.
* `channels last`: the same in the channels-last memory layout, which is faster on processors.
* `workers`: eight workers' steps of `Trainer`, which on a processor go through the model in turn.
* `at once`: the same by one forward and one backward pass of all workers, as on a GPU.
* `simulated`: `workers`, and each step goes through the packet simulator: eight workers and a server on a switch.
* `small packets`: the same with packets of 512 bytes instead of 4096.

The first step of each is not timed: it compiles and fills caches. Medians over rounds; shares are medians of the ratios
within a round, so that a drifting machine does not favour one row.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from gradwire.benchmarks.rows import Columns, Row, machine_title, print_json, print_table
from gradwire.scenarios.errors import GradwireError, MissingExtraError

WORKERS, BATCH = 8, 16
PIXELS = {"resnet8": 16, "resnet20": 32}
"""Available models, and the sides of their images."""
ROUNDS, STEPS = 5, 2
PLAIN, CHANNELS_LAST, WORKERS_STEP = "plain", "channels last", "workers"
SEED = 1


def _added(row: Row) -> str:
    return "" if row["row"] in (PLAIN, CHANNELS_LAST, WORKERS_STEP) else f"{100 * row['added']:+.1f} %"


COLUMNS: Columns = {
    "steps": lambda row: row["row"],
    "ms": lambda row: f"{row['step_ms']:.1f}",
    "images/s": lambda row: f"{row['images_per_s']:.0f}",
    "of plain": lambda row: f"{100 * row['of_plain']:.1f} %",
    "over workers": _added,
}


def bench_training(*, model: str, as_json: bool) -> None:
    """Time steps of a model, one of `PIXELS`; print a table or one JSON object. Raises GradwireError: the model is
    unknown; MissingExtraError: torch is not installed."""
    if model not in PIXELS:
        raise GradwireError(f"no such model: {model}", "bench training", f"--model {', '.join(PIXELS)}")
    rows = measure_steps(make_steps(model), ROUNDS, STEPS)
    if as_json:
        print_json(rows, model=model)
    else:
        print_table(rows, COLUMNS, ("steps",), f"{model}, {WORKERS} x {BATCH}; {machine_title()}")


def make_steps(model: str) -> dict[str, Callable[[], object]]:
    """Return the step function of each row, by name; they share only the data."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "capture") from error
    from torch import nn
    from torch.nn.functional import cross_entropy

    from gradwire.sim.sessions.session import Session
    from gradwire.traces.models import find_model
    from gradwire.training.backward.worker_gradients import JointGradients
    from gradwire.training.data import Dealer, images
    from gradwire.training.networks.simulated import Simulated
    from gradwire.training.trainer import Recipe, Trainer

    torch.set_num_threads(1)
    data = images("synthetic", PIXELS[model], augment=False, limit=20 * WORKERS * BATCH)

    def net() -> nn.Module:
        torch.manual_seed(SEED)
        built: nn.Module = find_model(model).build(data.classes)
        return built

    def recipe(payload: int = 4096) -> Recipe:
        return Recipe(WORKERS, BATCH, steps=1000, rate=0.1, schedule="constant", payload=payload)

    def plain(layout: torch.memory_format) -> Callable[[], object]:
        """Return a step of plain PyTorch, equivalent to `Trainer` with one worker."""
        alone, dealer = net().to(memory_format=layout), Dealer(data, WORKERS, BATCH, 0)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(alone.parameters(), 0.1, 0.9, weight_decay=1e-4)
        number = 0

        def step() -> None:
            nonlocal number
            inputs, targets = dealer.step(number)
            optimizer.zero_grad()
            cross_entropy(alone(*[tensor.to(memory_format=layout) for tensor in inputs]), targets).backward()
            optimizer.step()
            number += 1

        return step

    at_once = Trainer(net(), data, recipe())
    at_once.gradients = JointGradients(at_once.model, WORKERS)
    over = {
        name: Trainer(net(), data, recipe(payload), network=Simulated(Session(_scenario(payload)))).step
        for name, payload in (("simulated", 4096), ("small packets", 512))
    }
    return {
        PLAIN: plain(torch.contiguous_format),
        CHANNELS_LAST: plain(torch.channels_last),
        WORKERS_STEP: Trainer(net(), data, recipe()).step,
        "at once": at_once.step,
        **over,
    }


def _scenario(payload: int) -> Any:
    """Return the library's `train-tiny` under DLCP, at 10 Gbps."""
    from gradwire.scenarios.loading.load import load_scenario

    settings = [f"transport.payload={payload}B", "link.rate=10Gbps", f"job.workers={WORKERS}"]
    return load_scenario("train-tiny", set=settings, policy="dlcp")


def measure_steps(steps: dict[str, Callable[[], object]], rounds: int, each: int) -> list[Row]:
    """Return a row for each entry, from `rounds` rounds of `each` steps.

    step_ms : CPU time of a step. images_per_s : of all workers, per second of CPU time.
    of_plain : images/s over those of `plain`; added : CPU time over that of `workers`, less 1.
    """
    for step in steps.values():
        step()
    seconds_by_name: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        print(f"{number + 1}/{rounds}", file=sys.stderr, flush=True)
        names = [*steps]
        for name in names[number % len(names) :] + names[: number % len(names)]:  # in rotation
            begin = time.process_time()
            for _ in range(each):
                steps[name]()
            seconds_by_name[name].append((time.process_time() - begin) / each)
    return [
        {
            "row": name,
            "step_ms": round(1000 * statistics.median(seconds), 2),
            "images_per_s": round(WORKERS * BATCH / statistics.median(seconds), 1),
            "of_plain": round(_ratio(seconds_by_name[PLAIN], seconds), 3),
            "added": round(_ratio(seconds, seconds_by_name[WORKERS_STEP]) - 1, 3),
        }
        for name, seconds in seconds_by_name.items()
    ]


def _ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
