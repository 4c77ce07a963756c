"""Declares the table `Bound`, a loss bound that varies by layer and by the gradients' rate of change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import ScenarioTable
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.units import Fraction


class Bound(ScenarioTable):
    """Loss bound that varies by layer and iteration: one of `share`, `layers`, and `front` with `back`; with
    `critical`, lower while the gradients change fast. A bucket of several layers has the lowest of their bounds (ours).
    """

    union_tag: ClassVar[str] = "rule"

    share: Fraction | None = None
    """For every layer."""
    layers: tuple[Fraction, ...] | None = None
    """For each layer, starting at the input; as many as the trace has."""
    front: Fraction | None = None
    """For the layers nearest the input, which are said to tolerate more loss [notes: 1.1 %, and 0.4 % at the back] ...
    """
    back: Fraction | None = None
    """... and for the others."""
    front_part: Annotated[
        Fraction,
        Precondition(lambda at: at.table.front is not None, "front and back have the same bound", "front and back"),
    ] = 0.5
    """Fraction of the layers, by number, that count as nearest the input (ours)."""
    critical: Annotated[
        Fraction | None,
        Precondition(
            lambda at: at.table.critical is None or at.table.critical < at.table.most,
            "no layer may lose more anyway",
            "less than the other shares",
        ),
    ] = None
    """Upper limit in critical iterations: the first one, and those whose gradients have a norm that differs from that
    of the previous iteration by a fraction of `change` or more (DBLP, arXiv 2605.01989 [notes]). Each worker uses its
    own gradients; messages back to the workers use those of the first one. The norms are those of the trace, Euclidean
    if it has them, else sums of magnitudes."""
    change: Annotated[
        float,
        Field(gt=0, le=1000, strict=True),
        Precondition(lambda at: at.table.critical is not None, "no iteration is critical", "critical beside it"),
    ] = 0.5
    """Relative change of the norm from which an iteration is critical; DBLP: 0.5 [notes]."""

    def conflicts(self) -> Iterator[Mistake]:
        keys = [name for name in ("share", "layers", "front", "back") if getattr(self, name) is not None]
        if keys not in (["share"], ["layers"], ["front", "back"]):
            expected = "one of share, layers, and front with back"
            what = f"has {' and '.join(keys)}" if keys else "has no bound of any layer"
            yield Mistake("", what, None, expected)
        if self.layers is not None and not self.layers:
            yield Mistake("layers", "is an empty list", [], "one fraction per layer of the trace")

    @property
    def most(self) -> float:
        """Largest bound of any message."""
        return max(value for value in (self.share, *(self.layers or ()), self.front, self.back) if value is not None)

    def of(self, layer: int, layers: int) -> float:
        """Return the bound of one layer out of `layers`, outside of critical iterations."""
        if self.share is not None:
            return self.share
        if self.layers is not None:
            return self.layers[layer]
        chosen = self.front if layer < int(layers * self.front_part + 0.5) else self.back
        assert chosen is not None
        return chosen


def _tag(value: Any) -> str:
    return "rule" if isinstance(value, (dict, Bound)) else "share"


AnyBound = Annotated[Annotated[Fraction, Tag("share")] | Annotated[Bound, Tag("rule")], Discriminator(_tag)]
"""A plain number, the same for every message, or a rule."""


LOSSY = Precondition(
    lambda at: any(largest_bound_of_sender(sender) > 0 for sender in at.senders()),
    "no bound allows any loss",
    "job.push_bound, job.pull_bound or traffic.bound above 0",
)
"""For keys of transports that control when a message may end incomplete."""


def largest_bound(bound: float | Bound) -> float:
    """Return the largest bound of any message."""
    return bound.most if isinstance(bound, Bound) else bound


def largest_bound_of_sender(sender: Any) -> float:
    """Return the largest bound of any message of a job or traffic."""
    return max(largest_bound(getattr(sender, key, 0.0)) for key in ("push_bound", "pull_bound", "bound"))
