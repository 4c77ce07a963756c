"""What a training costs over plain PyTorch: `gradwire bench training`.

Steps of one model with as many pictures in all, by turns in one process on one thread of torch; processor time is
counted:

* `plain`: PyTorch's forward and backward pass over all pictures at once, and SGD; what the others are held against.
* `channels last`: the same with a picture's channels together in memory, as processors would rather have them.
* `workers`: eight workers' steps of `Trainer`, which on a processor go through the model in turn.
* `at once`: the same by one forward and one backward pass of all workers, as on a GPU.
* `simulated`: `workers`, and each step goes through the packet simulator: eight workers and a server on a switch.
* `small packets`: the same with packets of 512 bytes instead of 4096.

The first step of each is not timed: it compiles and fills caches. Medians over rounds; shares are medians of the ratios
within a round, so that a machine whose speed drifts does not favour one row.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from gradwire.benchmarks.fabric import machine
from gradwire.scenarios.errors import GradwireError, MissingExtraError

WORKERS, BATCH = 8, 16
PIXELS = {"resnet8": 16, "resnet20": 32}
"""Models that can be asked for, and sides of their pictures."""
ROUNDS, STEPS = 5, 2
PLAIN, CHANNELS_LAST, WORKERS_STEP = "plain", "channels last", "workers"
SEED = 1


def bench_training(*, model: str, as_json: bool) -> None:
    """Time steps of a model, one of `PIXELS`; print a table or one JSON object.

    Raises
    ------
    GradwireError
        There is no such model here.
    MissingExtraError
        torch is not installed.
    """
    if model not in PIXELS:
        raise GradwireError(f"no such model: {model}", "bench training", f"--model {', '.join(PIXELS)}")
    rows = measured(made(model), ROUNDS, STEPS)
    if as_json:
        print(json.dumps({"machine": machine(), "model": model, "rows": rows}))
    else:
        _print(model, rows)


def made(model: str) -> dict[str, Callable[[], object]]:
    """What makes a step of each row, by its name; nothing is in common but the data."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "capture") from error
    from torch import nn
    from torch.nn.functional import cross_entropy

    from gradwire.sim.session import Session
    from gradwire.traces.models import find_model
    from gradwire.training.data import Dealer, images
    from gradwire.training.gradients import Together
    from gradwire.training.simulated import Simulated
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
        """As `Trainer` does with one worker, without any of it."""
        alone, dealer = net().to(memory_format=layout), Dealer(data, WORKERS, BATCH, 0)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(alone.parameters(), 0.1, 0.9, weight_decay=1e-4)
        number = 0

        def step() -> None:
            nonlocal number
            inputs, targets = dealer.step(number)
            optimizer.zero_grad()
            cross_entropy(alone(*[each.to(memory_format=layout) for each in inputs]), targets).backward()
            optimizer.step()
            number += 1

        return step

    at_once = Trainer(net(), data, recipe())
    at_once.gradients = Together(at_once.model, WORKERS)
    over = {
        name: Trainer(net(), data, recipe(payload), network=Simulated(Session(_scenario(payload)))).step
        for name, payload in (("simulated", 4096), ("small packets", 512))
    }
    return {
        PLAIN: plain(torch.contiguous_format), CHANNELS_LAST: plain(torch.channels_last),
        WORKERS_STEP: Trainer(net(), data, recipe()).step, "at once": at_once.step, **over,
    }  # fmt: skip


def _scenario(payload: int) -> Any:
    """The library's `train-tiny` under DLCP, at 10 Gbps."""
    from gradwire.scenarios.load import load_scenario

    settings = [f"transport.payload={payload}B", "link.rate=10Gbps", f"job.workers={WORKERS}"]
    return load_scenario("train-tiny", set=settings, policy="dlcp")


def measured(steps: dict[str, Callable[[], object]], rounds: int, each: int) -> list[dict[str, Any]]:
    """A row for each entry, of so many rounds of so many steps of each.

    step_ms : processor time of a step. images_per_s : of all workers, for each second of it.
    of_plain : images/s over those of `plain`; added : processor time over that of `workers`, less 1.
    """
    for step in steps.values():
        step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        print(f"{number + 1}/{rounds}", file=sys.stderr, flush=True)
        for name, step in _turned(steps, number):
            began = time.process_time()
            for _ in range(each):
                step()
            taken[name].append((time.process_time() - began) / each)
    return [
        {
            "row": name, "step_ms": round(1000 * statistics.median(seconds), 2),
            "images_per_s": round(WORKERS * BATCH / statistics.median(seconds), 1),
            "of_plain": round(_ratio(taken[PLAIN], seconds), 3),
            "added": round(_ratio(seconds, taken[WORKERS_STEP]) - 1, 3),
        }
        for name, seconds in taken.items()
    ]  # fmt: skip


def _turned(
    steps: dict[str, Callable[[], object]], number: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Entries in an order that begins elsewhere in each round."""
    names = list(steps)
    for at in range(len(names)):
        name = names[(at + number) % len(names)]
        yield name, steps[name]


def _ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _print(model: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{model}, {WORKERS} x {BATCH}; "
        + "{processor}, {cores} cores, Python {python}".format(**machine())
    )
    for head in ("steps", "ms", "images/s", "of plain", "over workers"):
        table.add_column(head, justify="left" if head == "steps" else "right")
    for row in rows:
        added = "" if row["row"] in (PLAIN, CHANNELS_LAST, WORKERS_STEP) else f"{100 * row['added']:+.1f} %"
        table.add_row(
            row["row"],
            f"{row['step_ms']:.1f}",
            f"{row['images_per_s']:.0f}",
            f"{100 * row['of_plain']:.1f} %",
            added,
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)
