"""Bounds of loss as a rule: by layer, and by how fast the gradients change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, model_validator

from gradwire.scenarios.schema.base import Table, refuse
from gradwire.scenarios.units import Fraction

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


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
    front_part: Fraction = 0.5
    """Which part of the layers, by number, are those nearest the input (ours)."""
    critical: Fraction | None = None
    """No more than this in critical iterations: the first one, and those whose gradients have a norm that differs from
    that of the iteration before by `change` of it or more (DBLP, arXiv 2605.01989 [notes]). A worker goes by its own
    gradients, what comes back to the workers by those of the first one. The norms are those of the trace, Euclidean
    where it knows them, else sums of magnitudes."""
    change: Annotated[float, Field(gt=0, le=1000, strict=True)] = 0.5
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


def bound_remarks(job: Job) -> Iterator[str]:
    """What a job's bounds say that has no effect: keys, and why."""
    for name in ("push_bound", "pull_bound"):
        bound = getattr(job, name)
        given = bound.model_fields_set if isinstance(bound, Bound) else set()
        if "change" in given and bound.critical is None:
            yield f"{name}.change has no effect without {name}.critical"
        if "front_part" in given and bound.front is None:
            yield f"{name}.front_part has no effect without {name}.front and {name}.back"
        if isinstance(bound, Bound) and bound.critical is not None and bound.critical >= bound.most:
            yield f"{name}.critical has no effect: no layer may lose more than {bound.most:g} anyway"
    most = max(most_of(job.push_bound), most_of(job.pull_bound))
    if "bound_most" in job.model_fields_set and job.bound_per == "message":
        yield 'bound_most has no effect with bound_per = "message"'
    elif "bound_most" in job.model_fields_set and job.bound_most < most:
        yield f"bound_most has no effect: the bound is {most:g} already"
    if most_of(job.pull_bound) and job.tagging.magnitude and job.pull_important:
        yield "pull_bound has no effect with pull_important: all packets of the way back are important"


def _tag(value: Any) -> str:
    return "rule" if isinstance(value, (dict, Bound)) else "share"


AnyBound = Annotated[Annotated[Fraction, Tag("share")] | Annotated[Bound, Tag("rule")], Discriminator(_tag)]
"""A plain number, the same for every message, or a rule."""


def most_of(bound: float | Bound) -> float:
    """The largest that a bound can be for any message."""
    return bound.most if isinstance(bound, Bound) else bound
