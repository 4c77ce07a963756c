"""Bounds of loss as a rule: by layer, and by how fast the gradients change."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, model_validator

from gradwire.scenarios.schema.base import Table, refuse
from gradwire.scenarios.schema.effect_conditions import Needs, Situation
from gradwire.scenarios.units import Fraction


class Bound(Table):
    """How much may be lost where that is not the same for all layers and iterations: one of `share`, `layers`, and
    `front` with `back`; with `critical`, less while the gradients change fast. A bucket of several layers has the
    lowest of their bounds (ours)."""

    union_tag: ClassVar[str] = "rule"

    share: Fraction | None = None
    """Of every layer."""
    layers: tuple[Fraction, ...] | None = None
    """Of each layer, from the one nearest the input on; as many as the trace has."""
    front: Fraction | None = None
    """Of the layers nearest the input, which are said to stand more loss [notes: 1.1 %, and 0.4 % at the back] ..."""
    back: Fraction | None = None
    """... and of the others."""
    front_part: Annotated[
        Fraction, Needs(lambda at: at.table.front is not None, "front and back are not told apart", "front and back")
    ] = 0.5
    """Which part of the layers, by number, are those nearest the input (ours)."""
    critical: Annotated[
        Fraction | None,
        Needs(lambda at: at.table.critical is None or at.table.critical < at.table.most,
              "no layer may lose more anyway", "less than the other shares"),
    ] = None
    """No more than this in critical iterations: the first one, and those whose gradients have a norm that differs from
    that of the iteration before by `change` of it or more (DBLP, arXiv 2605.01989 [notes]). A worker goes by its own
    gradients, what comes back to the workers by those of the first one. The norms are those of the trace, Euclidean
    where it knows them, else sums of magnitudes."""
    change: Annotated[
        float, Field(gt=0, le=1000, strict=True),
        Needs(lambda at: at.table.critical is not None, "no iteration is critical", "critical beside it"),
    ] = 0.5
    """The relative change of the norm from which on an iteration is critical; DBLP: 0.5 [notes]."""

    @model_validator(mode="after")
    def _one_rule(self) -> Bound:
        given = [name for name in ("share", "layers", "front", "back") if getattr(self, name) is not None]
        if given not in (["share"], ["layers"], ["front", "back"]):
            expected = "one of share, layers, and front with back"
            raise refuse("", f"has {' and '.join(given)}" if given else "says of no layer how much", None, expected)
        if self.layers is not None and not self.layers:
            raise refuse("layers", "is an empty list", [], "one fraction per layer of the trace")
        return self

    @property
    def most(self) -> float:
        """The largest that it can be for any message."""
        return max(value for value in (self.share, *(self.layers or ()), self.front, self.back) if value is not None)

    def of(self, layer: int, layers: int) -> float:
        """Of one layer of so many, outside of critical iterations."""
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


def _allows_loss(at: Situation) -> bool:
    """Return True if a bound of anything that the transport carries allows loss."""
    return any(bound_of(sender) > 0 for sender in at.senders())


LOSSY = Needs(_allows_loss, "no bound allows any loss", "job.push_bound, job.pull_bound or traffic.bound above 0")
"""Of keys of transports that say when a message may end without the rest."""


def most_of(bound: float | Bound) -> float:
    """The largest that a bound can be for any message."""
    return bound.most if isinstance(bound, Bound) else bound


def bound_of(sender: Any) -> float:
    """Return the largest bound of any message of a job or traffic."""
    return max(most_of(getattr(sender, key, 0.0)) for key in ("push_bound", "pull_bound", "bound"))
