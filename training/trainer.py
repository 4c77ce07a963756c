"""The trainer: data-parallel training of N workers in one process, with a reducer and a network between them.

A step: every worker's gradients of its own samples, reduced, carried by the network, averaged from what arrived, and
one update that all workers make alike (synchronous). Where something is lost on the way back from the servers, or in
the all-gather of a ring, workers have parameters of their own from then on (`gradwire.training.replicas`).
Initialisation, data and everything drawn by reducers and networks have seeds of their own, so that two trainings that
differ in one thing are paired in everything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.given import instance_of, unfit
from gradwire.traces.trace import TensorInfo
from gradwire.training.collective import all_reduced
from gradwire.training.data import Dealer, Images, Text
from gradwire.training.devices import CPU, Stopwatch, draw_on, drawn, moved
from gradwire.training.exchange import Exchange, Sent
from gradwire.training.gradients import Answers, Fastest
from gradwire.training.kept import Again, remembers
from gradwire.training.network import Ideal, Network
from gradwire.training.of_run import OfRun
from gradwire.training.parts import model_given, network_given, reducer_given
from gradwire.training.precision import Loss, check_precision, in_precision
from gradwire.training.recipe import Recipe as Recipe  # for whoever makes trainers
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.none import Dense
from gradwire.training.replicas import Replicas
from gradwire.training.strangers import in_step


@dataclass(frozen=True)
class StepRow:
    """One step: numbers for a table.

    loss : mean of the workers.
    sent_bytes : payload that all workers sent.
    lost : share of it that did not arrive, mean over pushes and tensors by what these hold; `lost_back` the same of
        what servers sent back (a ring's hops are all in `lost`).
    encode_ps, decode_ps : of `time_ps`, what encoding and decoding took, if that counts (`Exchange.encode_time`); the
        network may do its part during the first.
    time_ps : how long the network took; `clock_ps` all steps until here.
    apart_max, apart_rms : how far the workers' parameters are from their mean after the step, the largest and the root
        mean square over workers and parameters; 0 where all have the same.
    pulled_bytes : payload that servers sent back to all workers (`gradwire.training.exchange.answer_bytes`, and what
        `gradwire.training.systems` say); 0 in a ring.
    """

    step: int
    loss: float
    sent_bytes: int
    lost: float
    time_ps: int
    clock_ps: int
    rate: float
    apart_max: float = 0.0
    apart_rms: float = 0.0
    lost_back: float = 0.0
    encode_ps: int = 0
    decode_ps: int = 0
    pulled_bytes: int = 0


@dataclass(frozen=True)
class Score:
    """What a model is worth after some steps, on data that it has not seen. Where workers have parameters of their own,
    each answers an N-th of it."""

    step: int
    loss: float
    accuracy: float
    clock_ps: int
    sent_bytes: int
    pulled_bytes: int = 0


def losses_of(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Cross entropy of each sample, (samples,), or of each token, (samples, length)."""
    logits = model(*inputs)
    return cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


def tensors_of(model: nn.Module) -> list[TensorInfo]:
    """The parameters in the order of `model.parameters()`; a layer is a module that has some, in order of
    registration."""
    layers: dict[str, int] = {}
    infos = []
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        layer = layers.setdefault(owner, len(layers))
        infos.append(TensorInfo(name, tuple(parameter.shape), parameter.numel(), "float32", layer))
    return infos


class Trainer:
    """Trains a model on data as a recipe says, on the model's device. Ask `step`, or iterate `run`; stop and go on at
    any step."""

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, reducer: Reducer | None = None,
        network: Network | None = None, loss: Loss = losses_of, recorded: bool = False,
    ) -> None:  # fmt: skip
        """`recorded`: on a GPU, replay what was done first (`gradwire.training.recorded`); for models and losses in
        which Python decides nothing from step to step.

        Raises
        ------
        ScenarioError
            Something is none of these; a model has no parameters, frozen ones, or others than float32; the network is
            `gradwire.training.kept.Again` of a training of something else.
        ValueError
            They do not go together.
        """
        self.model = model_given(model, "Trainer(model)")
        if isinstance(data, type) or not (hasattr(data, "batch") and hasattr(data, "__len__")):  # anybody's
            raise unfit(data, "Trainer(data)", "what gradwire.training.data reads", ScenarioError)
        self.data, self.recipe = data, instance_of(recipe, Recipe, "Trainer(recipe)", "a Recipe", ScenarioError)
        reducer = Dense() if reducer is None else reducer_given(reducer, "Trainer(reducer)")
        self.network = Ideal() if network is None else network_given(network, "Trainer(network)")
        if not callable(loss):
            raise unfit(loss, "Trainer(loss)", "a function of (model, inputs, targets)", ScenarioError)
        self.asking: Callable[[tuple[Tensor, ...]], AbstractContextManager[object]] = lambda inputs: nullcontext()
        """Around each question to the model outside of the loss, about these inputs."""
        self.device = next((each.device for each in model.parameters()), CPU)
        """Where everything is but what goes to the network: that of the model's parameters."""
        check_precision(self.model, recipe.precision, self.device)
        self.loss = in_precision(loss, recipe.precision, self.device)
        self.watch = Stopwatch(self.device, waits=recipe.encode_time == "measured")
        self.dealer = Dealer(data, recipe.workers, recipe.batch, recipe.data_seed, self.device)
        self.infos = tensors_of(model)
        self.exchange = Exchange(
            reducer, self.infos, recipe.workers, recipe.seed, recipe.fill, recipe.payload, recipe.feed_back,
            recipe.collective, recipe.bucket, recipe.pull_fill, recipe.encode_time, self.device,
        )  # fmt: skip
        fastest = Fastest(model, recipe.workers, recorded)
        self.gradients: Answers = fastest
        self.slower = fastest.slower
        """What of it takes longer than it had to on this device, and why."""
        self.optimizer = self._optimizer(list(model.parameters()))
        self.replicas: Replicas | None = None
        """The workers' own parameters, once they differ."""
        self.done, self.clock_ps, self.sent_bytes, self.pulled_bytes = 0, 0, 0, 0
        self.encode_ns = self.server_ns = 0
        """Time of all workers' encoding, and of the server's own work, as `gradwire.training.devices.Stopwatch` has it:
        no part of what is repeatable."""
        self.lost: list[list[float]] = []
        """Of the last step, for each push and tensor, the share that did not arrive; the mean is `StepRow.lost`."""
        self.senders: Sequence[int] = range(recipe.workers)
        """Whose push each row of `lost` is of. All workers push once in a step, one after the other, unless a system
        says otherwise."""
        if isinstance(self.network, Again | OfRun):
            self.network.compare(
                recipe.workers, recipe.payload, recipe.collective, recipe.steps, self.infos, self.exchange.reducer
            )

    def step(self) -> StepRow:
        """One step of all workers. It may be one beyond `Recipe.steps`, where `run` ends; see `Recipe.rate_at`.

        Raises
        ------
        ScenarioError
            A network or a reducer of the user's own answers with something that does not fit.
        """
        number, recipe = self.done, self.recipe
        self.model.train()
        inputs, targets = self.dealer.step(number)
        answers = self.gradients if self.replicas is None else self.replicas.answers
        losses, gradients = answers(self.loss, inputs, targets)
        with in_step(number):
            means, sent = self.exchange.step(gradients, number, self.network)
        began = self.watch()
        self._update(means, sent, number)
        self.server_ns += sent.server_ns + self.watch() - began
        self.encode_ns += sent.encode_ns
        apart = (0.0, 0.0) if self.replicas is None else self.replicas.apart()
        self.done += 1
        self.clock_ps += sent.time_ps
        self.sent_bytes += sum(sent.nbytes)
        self.pulled_bytes += sent.pulled_bytes
        self.lost = sent.lost
        numel = sum(info.numel for info in self.infos) * recipe.workers
        lost = sum(share * info.numel for row in sent.lost for share, info in zip(row, self.infos, strict=True)) / numel
        back = sum(int((~mask).sum()) for row in sent.pulled for mask in row if mask is not None) / numel
        return StepRow(
            number, sum(losses) / len(losses), sum(sent.nbytes), lost, sent.time_ps, self.clock_ps,
            recipe.rate_at(number), *apart, back, sent.encode_ps, sent.decode_ps, sent.pulled_bytes,
        )  # fmt: skip

    def _optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        recipe = self.recipe
        if recipe.optimizer == "adamw":
            return torch.optim.AdamW(
                parameters, recipe.rate, recipe.betas, recipe.epsilon, weight_decay=recipe.weight_decay
            )
        return torch.optim.SGD(
            parameters, recipe.rate, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.nesterov
        )

    def _update(self, means: list[Tensor], sent: Sent, number: int) -> None:
        """The update of a step, by all alike or by each worker."""
        recipe, rate = self.recipe, self.recipe.rate_at(number)
        ring = recipe.collective == "ring"
        if self.replicas is None and (sent.views or any(mask is not None for row in sent.pulled for mask in row)):
            self.replicas = Replicas(self.model, recipe.workers)
            if ring:
                self.replicas.with_optimizers(self._optimizer, self.optimizer.state_dict())
        if ring and self.replicas is not None:
            self.replicas.update(sent.views or [means], rate, recipe.clip)
        else:
            for parameter, mean in zip(self.model.parameters(), means, strict=True):
                parameter.grad = mean
            if recipe.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            if self.replicas is not None:
                self.replicas.pull(sent.pulled, recipe.pull_fill)
        if self.replicas is not None and recipe.resync and (number + 1) % recipe.resync == 0:
            if ring:
                nbytes, time_ps = all_reduced(self.exchange, self.replicas.values, number, self.network)
                sent.nbytes = [each + nbytes for each in sent.nbytes]
                sent.time_ps += time_ps
            self.replicas.together()

    def last_turns(self) -> list[dict[str, Any]]:
        """Of a system whose workers come one by one, the turns of the last step, as rows of the table `turns`."""
        return []

    def score(self, batch: int = 500) -> Score:
        """Loss and accuracy on held-out data."""
        inputs, targets = self.data.held_out() if isinstance(self.data, Text) else self.data.test
        if self.replicas is None:
            total, right = self._judged(inputs, targets, batch)
        else:
            total, right = 0.0, 0
            count = self.recipe.workers
            parts = zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True)
            for worker, (mine, answers) in enumerate(parts):
                with self.replicas.of(worker):
                    loss, correct = self._judged(mine, answers, batch)
                total, right = total + loss, right + correct
        count = targets.numel()
        return Score(self.done, total / count, right / count, self.clock_ps, self.sent_bytes, self.pulled_bytes)

    def _judged(self, inputs: Tensor, targets: Tensor, batch: int) -> tuple[float, int]:
        """(sum of the losses, right answers) of the model."""
        self.model.eval()
        total, right = 0.0, 0
        with torch.no_grad():
            for mine, answers in zip(inputs.split(batch), targets.split(batch), strict=True):
                mine, answers = mine.to(self.device), answers.to(self.device)
                with self.asking((mine,)):
                    logits = self.model(mine)
                total += float(cross_entropy(logits.flatten(0, -2), answers.flatten(), reduction="sum"))
                right += int((logits.argmax(dim=-1) == answers).sum())
        return total, right

    def run(
        self, score_every: int = 0, until: float | None = None, progress: Callable[[float, str], object] | None = None
    ) -> Iterator[StepRow | Score]:
        """Steps until the recipe's are done, with a score every so many steps and at the end.

        until : accuracy with which training is over, seen when a score is taken.
        progress : hears the share that is done, and words.
        """
        began, first = time.monotonic(), self.done
        while self.done < self.recipe.steps:
            row = self.step()
            yield row
            if progress is not None:
                left = (time.monotonic() - began) / (self.done - first) * (self.recipe.steps - self.done)
                progress(self.done / self.recipe.steps, f"step {self.done}, loss {row.loss:.3f}, {left:.0f} s left")
            if self.due(score_every):
                score = self.score()
                yield score
                if until is not None and score.accuracy >= until:
                    return

    @property
    def rests(self) -> bool:
        """Whether its network remembers what it has carried, and so has to rest for a checkpoint."""
        return remembers(self.network)

    def rest(self) -> None:
        """Let the network rest, as for a checkpoint."""
        self.network.state_dict()

    def due(self, every: int) -> bool:
        """Whether what is done every so many steps (0 for never) and at the end is to be done now."""
        return self.done == self.recipe.steps or (every > 0 and self.done % every == 0)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later process needs to go on as if nothing had been, tensors copied."""
        return {
            "recipe": asdict(self.recipe),
            "done": self.done, "clock_ps": self.clock_ps, "sent_bytes": self.sent_bytes,
            "pulled_bytes": self.pulled_bytes, "encode_ns": self.encode_ns, "server_ns": self.server_ns,
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "exchange": self.exchange.state_dict(),
            "network": self.network.state_dict(),
            "replicas": None if self.replicas is None else self.replicas.all_of_it(),
            "drawn": drawn(self.device),
        }  # fmt: skip

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there, on whatever device that was. What models draw themselves, as dropout does, is drawn from
        torch's own random numbers, and these go on from there, too.

        Raises
        ------
        ScenarioError
            It is nothing that `state_dict` gave of a trainer like this one. Some of it may have been taken over: make a
            new trainer.
        ValueError
            It is of another recipe.
        """
        where, expected = f"{type(self).__name__}.load_state_dict(saved)", "what state_dict gave of such a trainer"
        if not isinstance(saved, dict) or not isinstance(saved.get("recipe"), dict):
            raise unfit(saved, where, expected, ScenarioError)
        before = asdict(Recipe()) | saved["recipe"]  # what was not there yet was as it is by default
        differing = [name for name, value in asdict(self.recipe).items() if before[name] != value]
        if differing:
            raise ValueError(f"the checkpoint is of another recipe: {', '.join(differing)}")
        try:
            self.take_over(moved(deepcopy(saved), self.device))  # optimisers keep what they are given
        except GradwireError:
            raise
        except KeyError as error:
            raise ScenarioError(f"lacks {error}", where, expected) from error
        except Exception as error:  # other shapes, other types: torch raises almost anything
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise ScenarioError(f"does not fit ({said})", where, expected) from error

    def take_over(self, saved: dict[str, Any]) -> None:
        """`load_state_dict` of what is on this device already; what systems override."""
        self.done, self.clock_ps, self.sent_bytes = saved["done"], saved["clock_ps"], saved["sent_bytes"]
        self.pulled_bytes, self.encode_ns, self.server_ns = (
            saved[name] for name in ("pulled_bytes", "encode_ns", "server_ns")
        )
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.exchange.load_state_dict(saved["exchange"])
        self.network.load_state_dict(saved["network"])
        draw_on(saved.get("drawn", {}), self.device)
        self.replicas = None
        if saved["replicas"] is not None:
            self.replicas = Replicas(self.model, self.recipe.workers)
            self.replicas.go_on_from(saved["replicas"], self._optimizer)
