"""`Trainer` runs data-parallel training of N workers in one process, with a reducer and a network between them.

A step computes each worker's gradients on its own samples, reduces them, sends them over the network, averages what
arrived, and makes one update that all workers share (synchronous training). If something is lost on the way back from
the servers, or in the all-gather of a ring, workers have separate parameters from then on
(`gradwire.training.replicas`). Initialisation, data, reducers and networks have separate seeds, so that two training
runs that differ in one thing are paired in everything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.validation.argument_checks import require_instance, wrong_type_error
from gradwire.traces.trace import TensorInfo
from gradwire.training.backward.worker_gradients import ComputeGradients, FastestGradients
from gradwire.training.data import Dealer, Images, Text
from gradwire.training.devices import Stopwatch, model_device, random_states, restore_random_states, to_device
from gradwire.training.exchange.exchange import Exchange, ExchangeStats
from gradwire.training.exchange.lossy_ring import lossless_all_reduce
from gradwire.training.networks.builtin_networks import Ideal
from gradwire.training.networks.network_interface import Network, ReplayNetwork, is_stateful
from gradwire.training.precision import Loss, check_precision, in_precision
from gradwire.training.recipe import Recipe as Recipe  # re-exported
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.none import Dense
from gradwire.training.reducers.state import cloned
from gradwire.training.replicas import Replicas, descend
from gradwire.training.value_checks import check_model, check_network, check_reducer, in_step


@dataclass(frozen=True)
class StepRow:
    """One row of the table of steps.

    loss : mean of the workers.
    sent_bytes : payload that all workers sent.
    lost : share of the payload that did not arrive, averaged over pushes and tensors weighted by size; `lost_back` is
        the same for what servers sent back (all hops of a ring count in `lost`).
    encode_ps, decode_ps : time of encoding and decoding within `time_ps`, if it counts (`Exchange.encode_time`); the
        network may overlap with encoding.
    time_ps : duration of the step's exchange; `clock_ps` is the sum over all steps so far.
    apart_max, apart_rms : distance of the workers' parameters from their mean after the step, maximum and root mean
        square over workers and parameters; 0 if all are equal.
    pulled_bytes : payload that servers sent back to all workers, see
        `gradwire.training.exchange.exchange_stats.answer_bytes` and `gradwire.training.systems`; 0 in a ring.
    retransmitted : retransmissions of data packets; None if the network does not say.
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
    retransmitted: int | None = None


@dataclass(frozen=True)
class Score:
    """Validation loss and accuracy after a number of steps. If workers have separate parameters, each is evaluated on
    an N-th of the held-out data."""

    step: int
    loss: float
    accuracy: float
    clock_ps: int
    sent_bytes: int
    pulled_bytes: int = 0


def losses_of(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Return the cross entropy of each sample, (samples,), or of each token, (samples, length)."""
    logits = model(*inputs)
    return cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


def tensors_of(model: nn.Module) -> list[TensorInfo]:
    """Return the parameters in the order of `model.parameters()`. A layer is a module that has parameters; layers are
    numbered in order of registration."""
    layers: dict[str, int] = {}
    infos = []
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        layer = layers.setdefault(owner, len(layers))
        infos.append(TensorInfo(name, tuple(parameter.shape), parameter.numel(), "float32", layer))
    return infos


class Trainer:
    """Trains a model on data according to a recipe, on the model's device. Call `step`, or iterate over `run`; training
    can stop and continue at any step."""

    state_key: ClassVar[str] = ""
    """Key of a subclass's own attributes, `state_names`, in a checkpoint."""
    state_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: nn.Module,
        data: Images | Text,
        recipe: Recipe,
        reducer: Reducer | None = None,
        network: Network | None = None,
        loss: Loss = losses_of,
        recorded: bool = False,
    ) -> None:
        """Validate the parts and put them together.

        recorded : on a GPU, record the first step as a CUDA graph and replay it; for models and losses in which Python
            decides nothing from step to step.

        Raises ScenarioError if an argument has the wrong type; a model has no parameters, frozen ones, or others than
        float32; the network repeats the losses of a different training run. Raises ValueError if the arguments do not
        go together.
        """
        self.model = check_model(model, "Trainer(model)")
        if isinstance(data, type) or not (hasattr(data, "batch") and hasattr(data, "__len__")):  # may be user-defined
            raise wrong_type_error(data, "Trainer(data)", "an Images or Text of gradwire.training.data", ScenarioError)
        self.data, self.recipe = data, require_instance(recipe, Recipe, "Trainer(recipe)", "a Recipe", ScenarioError)
        reducer = Dense() if reducer is None else check_reducer(reducer, "Trainer(reducer)")
        self.network = Ideal() if network is None else check_network(network, "Trainer(network)")
        if not callable(loss):
            raise wrong_type_error(loss, "Trainer(loss)", "a function of (model, inputs, targets)", ScenarioError)
        self.asking: Callable[[tuple[Tensor, ...]], AbstractContextManager[object]] = lambda inputs: nullcontext()
        """Context around each call of the model outside the loss, given its inputs."""
        self.device = model_device(model)
        """Device of the model's parameters; everything but what goes to the network is there."""
        check_precision(self.model, recipe.precision, self.device)
        self.loss = in_precision(loss, recipe.precision, self.device)
        self.watch = Stopwatch(self.device, waits=recipe.encode_time == "measured")
        self.dealer = Dealer(data, recipe.workers, recipe.batch, recipe.data_seed, self.device)
        self.infos = tensors_of(model)
        shared = {name: getattr(recipe, name) for name in EXCHANGE_KEYS}
        self.exchange = Exchange(reducer, self.infos, device=self.device, **shared)
        fastest = FastestGradients(model, recipe.workers, recorded)
        self.gradients: ComputeGradients = fastest
        self.slower = fastest.slower
        """Parts that run more slowly than this device could, with reasons."""
        self.optimizer = self._optimizer(list(model.parameters()))
        self.replicas: Replicas | None = None
        """The workers' separate parameters, once they differ."""
        self.done, self.clock_ps, self.sent_bytes, self.pulled_bytes = 0, 0, 0, 0
        self.encode_ns = self.server_ns = 0
        """Time of all workers' encoding and of the server's own work, by `gradwire.training.devices.Stopwatch`: not
        reproducible."""
        self.lost: list[list[float]] = []
        """Share lost in the last step, by push and tensor; the mean is `StepRow.lost`."""
        self.senders: Sequence[int] = range(recipe.workers)
        """Worker of each row of `lost`. All workers push once in a step, in order, unless a system does otherwise."""
        if isinstance(self.network, ReplayNetwork):
            self.network.compare(recipe, self.infos, self.exchange.reducer)

    def step(self) -> StepRow:
        """Run one step of all workers. It may be one beyond `Recipe.steps`, where `run` ends; see `Recipe.rate_at`.
        Raises ScenarioError if a user-defined network or reducer returned something invalid."""
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
        apart_max, apart_rms = (0.0, 0.0) if self.replicas is None else self.replicas.distance_from_mean()
        numel = sum(info.numel for info in self.infos) * recipe.workers
        back = sum(int((~mask).sum()) for row in sent.pulled for mask in row if mask is not None) / numel
        more: dict[str, Any] = {"apart_max": apart_max, "apart_rms": apart_rms, "lost_back": back}
        more |= {"encode_ps": sent.encode_ps, "decode_ps": sent.decode_ps, "retransmitted": sent.retransmitted}
        loss = sum(losses) / len(losses)
        return self.finish_step(loss, sum(sent.nbytes), sent.pulled_bytes, sent.time_ps, sent.lost, **more)

    def finish_step(
        self, loss: float, sent_bytes: int, pulled_bytes: int, time_ps: int, lost: list[list[float]], **more: Any
    ) -> StepRow:
        """Count a step and return its row. `lost`: share lost, by push and tensor. `more`: further columns."""
        number, self.lost = self.done, lost
        self.done += 1
        self.clock_ps += time_ps
        self.sent_bytes += sent_bytes
        self.pulled_bytes += pulled_bytes
        share = sum(share * info.numel for row in lost for share, info in zip(row, self.infos, strict=True))
        share /= sum(info.numel for info in self.infos) * self.recipe.workers
        rate, more = self.recipe.rate_at(number), {**more, "pulled_bytes": pulled_bytes}
        return StepRow(number, loss, sent_bytes, share, time_ps, self.clock_ps, rate, **more)

    def _optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        recipe, decay = self.recipe, self.recipe.weight_decay
        if recipe.optimizer == "adamw":
            return torch.optim.AdamW(parameters, recipe.rate, recipe.betas, recipe.epsilon, weight_decay=decay)
        momentum, nesterov = recipe.momentum, recipe.nesterov
        return torch.optim.SGD(parameters, recipe.rate, momentum, weight_decay=decay, nesterov=nesterov)

    def _update(self, means: list[Tensor], sent: ExchangeStats, number: int) -> None:
        """Apply the update of a step, once for all workers or separately for each."""
        recipe, rate = self.recipe, self.recipe.rate_at(number)
        ring = recipe.collective == "ring"
        if self.replicas is None and (sent.views or any(mask is not None for row in sent.pulled for mask in row)):
            self.replicas = Replicas(self.model, recipe.workers)
            if ring:
                self.replicas.with_optimizers(self._optimizer, self.optimizer.state_dict())
        if ring and self.replicas is not None:
            self.replicas.update(sent.views or [means], rate, recipe.clip)
        else:
            descend(self.optimizer, list(self.model.parameters()), means, rate, recipe.clip)
            if self.replicas is not None:
                self.replicas.pull(sent.pulled, recipe.pull_fill)
        if self.replicas is not None and recipe.resync and (number + 1) % recipe.resync == 0:
            if ring:
                nbytes, time_ps = lossless_all_reduce(self.exchange, self.replicas.values, number, self.network)
                sent.nbytes = [sent_bytes + nbytes for sent_bytes in sent.nbytes]
                sent.time_ps += time_ps
            self.replicas.copy_model_to_all()

    def turn_rows(self) -> list[dict[str, Any]]:
        """Return the turns of the last step as rows of the table `turns`, if workers push one by one."""
        return []

    def prediction_rows(self) -> list[dict[str, Any]]:
        """Return how well each predictor of parameters does now as rows of the table `predictions`, if there are
        any."""
        return []

    def score(self, batch: int = 500) -> Score:
        """Return loss and accuracy on held-out data."""
        inputs, targets = self.data.validation_batches() if isinstance(self.data, Text) else self.data.test
        if self.replicas is None:
            total, right = self._evaluate(inputs, targets, batch)
        else:
            total, right = 0.0, 0
            count = self.recipe.workers
            parts = zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True)
            for worker, (part, answers) in enumerate(parts):
                with self.replicas.of(worker):
                    loss, correct = self._evaluate(part, answers, batch)
                total, right = total + loss, right + correct
        count = targets.numel()
        return Score(self.done, total / count, right / count, self.clock_ps, self.sent_bytes, self.pulled_bytes)

    def _evaluate(self, inputs: Tensor, targets: Tensor, batch: int) -> tuple[float, int]:
        """Return (sum of the losses, number of correct answers) of the model."""
        self.model.eval()
        total, right = 0.0, 0
        with torch.no_grad():
            for part, answers in zip(inputs.split(batch), targets.split(batch), strict=True):
                part, answers = part.to(self.device), answers.to(self.device)
                with self.asking((part,)):
                    logits = self.model(part)
                total += float(cross_entropy(logits.flatten(0, -2), answers.flatten(), reduction="sum"))
                right += int((logits.argmax(dim=-1) == answers).sum())
        return total, right

    def run(
        self, score_every: int = 0, until: float | None = None, progress: Callable[[float, str], object] | None = None
    ) -> Iterator[StepRow | Score]:
        """Yield a row per remaining step of the recipe, and a score every `score_every` steps and at the end.

        until : stop at this validation accuracy, checked at each score.
        progress : called with (fraction, message).
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
    def has_persistent_state(self) -> bool:
        """Return True if the network carries state between steps and must come to rest for a checkpoint."""
        return is_stateful(self.network)

    def come_to_rest(self) -> None:
        """Bring the network to rest, as for a checkpoint."""
        self.network.state_dict()

    def due(self, every: int) -> bool:
        """Return True if something done every `every` steps (0: never) and at the end is due now."""
        return self.done == self.recipe.steps or (every > 0 and self.done % every == 0)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a later process needs to resume exactly, with tensors copied."""
        own = {self.state_key: {name: cloned(getattr(self, name)) for name in self.state_names}}
        return {
            "recipe": asdict(self.recipe),
            **{name: getattr(self, name) for name in COUNTERS},
            "model": cloned(self.model.state_dict()),
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "exchange": self.exchange.state_dict(),
            "network": self.network.state_dict(),
            "replicas": None if self.replicas is None else self.replicas.state_dict(),
            "drawn": random_states(self.device),
            **(own if self.state_names else {}),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Resume from a saved state, made on any device. Random numbers that models draw themselves (dropout) come from
        torch's generators, whose state is restored as well. Raises ScenarioError if `saved` is not the state of a
        trainer like this one. Some of it may have been loaded: make a new trainer. Raises ValueError if it belongs to
        another recipe."""
        where, expected = f"{type(self).__name__}.load_state_dict(saved)", "the state_dict of such a trainer"
        if not isinstance(saved, dict) or not isinstance(saved.get("recipe"), dict):
            raise wrong_type_error(saved, where, expected, ScenarioError)
        before = asdict(Recipe()) | saved["recipe"]  # older checkpoints lack newer keys: their defaults held
        differing = [name for name, value in asdict(self.recipe).items() if before[name] != value]
        if differing:
            raise ValueError(f"the checkpoint is of another recipe: {', '.join(differing)}")
        try:
            self.load_state(to_device(deepcopy(saved), self.device))  # optimisers keep references
        except GradwireError:
            raise
        except KeyError as error:
            raise ScenarioError(f"lacks {error}", where, expected) from error
        except Exception as error:  # other shapes, other types: torch raises almost anything
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            raise ScenarioError(f"does not fit ({first_line})", where, expected) from error

    def load_state(self, saved: dict[str, Any]) -> None:
        """Load a state that is already on this device, and used by nothing else; systems override this."""
        for name in COUNTERS:
            setattr(self, name, saved[name])
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.exchange.load_state_dict(saved["exchange"])
        self.network.load_state_dict(saved["network"])
        restore_random_states(saved.get("drawn", {}), self.device)
        self.replicas = None
        if saved["replicas"] is not None:
            self.replicas = Replicas(self.model, self.recipe.workers)
            self.replicas.resume(saved["replicas"], self._optimizer)
        for name in self.state_names:
            now, value = getattr(self, name), saved[self.state_key][name]
            if isinstance(now, Tensor):
                now.copy_(value)
            else:
                setattr(self, name, value)


EXCHANGE_KEYS = ("workers", "seed", "fill", "payload", "feed_back", "collective", "bucket", "pull_fill", "encode_time")
"""Hyperparameters that an exchange takes over."""
COUNTERS = ("done", "clock_ps", "sent_bytes", "pulled_bytes", "encode_ns", "server_ns")
"""Numbers in a checkpoint."""
