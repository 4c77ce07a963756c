"""Declares the tables of gradient tagging and of policies (variants of a scenario), and merges a policy's changes.

The sending host turns a tensor into tagged packets: its layer gives a priority (a queue), the magnitude of a packet's
gradients makes it important or droppable. These tables declare the tagging; `gradwire.traces.tagging` performs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.schema.base import Flag, Natural, ScenarioTable
from gradwire.scenarios.schema.effect_conditions import Precondition, TableContext, is_marked
from gradwire.scenarios.units import Fraction

NAME_OR_TABLE_KEYS = ("transport",)
"""Fields in which a name alone stands for the table of that `kind` with its defaults."""


BY_MAGNITUDE = Precondition(
    lambda at: at.owner.tagging.magnitude, "packets are not tagged by magnitude", "job.tagging.magnitude = true"
)


NOT_DRAWN = Precondition(
    lambda at: not at.table.random, "important packets are drawn at random", "job.tagging.random = false"
)


BOTH_KINDS = Precondition(
    lambda at: 0 < at.table.important_fraction < 1,
    "the packets of all layers are of one kind",
    "job.tagging.important_fraction between 0 and 1",
)


def _tags_matter(at: TableContext) -> bool:
    """Return True if anything treats droppable packets differently: a switch, or a transport that sends them last."""
    return is_marked(at) or ":" in at.transport.kind or bool(at.transport.may_lose)


class Tagging(ScenarioTable):
    """Tags that the sender sets on its packets. Without any, all are in one class, and important or droppable as their
    transport sends untagged packets (the table below).

    The paper tags by layer and magnitude but gives neither statistic nor threshold [notes]; the statistic (mean |g| of
    a packet), the threshold and all defaults here are our choice.
    """

    layer_priority: Flag = False
    """Map layers, in groups of equal bytes, to the classes of `priorities`, front layers to the first one."""
    priorities: Annotated[
        tuple[Natural, ...],
        Field(min_length=1, max_length=8),
        Precondition(
            lambda at: at.table.layer_priority, "layers have no priorities", "job.tagging.layer_priority = true"
        ),
    ] = (1, 2, 3, 4, 5, 6, 7)
    """The queues that data may use, first = front layers. Queue 0 is left to control packets by default."""
    magnitude: Annotated[
        Flag,
        Precondition(
            _tags_matter,
            "nothing treats droppable packets differently",
            "switch.ecn_threshold with switch.selective_drop, or a transport that may lose",
        ),
    ] = False
    """true: packets with small gradients are droppable and all others important; false: the transport decides for all
    packets, including those of the way back (the table below)."""
    important_fraction: Annotated[Fraction, BY_MAGNITUDE] = 0.5
    """Share of a tensor's packets that magnitude tagging makes important."""
    important_rises: Annotated[Flag, BY_MAGNITUDE, BOTH_KINDS] = False
    """The share of important packets rises from 0 in the first layer to 1 in the last one, and is `important_fraction`
    on average over all bytes: front layers tolerate more loss [notes]. How the papers combine layer and magnitude is
    unknown: ours."""
    important_last_layers: Annotated[Natural, BY_MAGNITUDE] = 0
    """All packets of this many last layers are important: back layers tolerate less loss [notes]."""
    ewma: Annotated[float, Field(ge=0, lt=1, strict=True), BY_MAGNITUDE, NOT_DRAWN] = 0.9
    """Weight of the past in a tensor's threshold, from iteration to iteration."""
    sample: Annotated[float, Field(gt=0, le=1, strict=True), BY_MAGNITUDE, NOT_DRAWN] = 0.01
    """Share of a tensor's chunks from which the threshold is estimated."""
    random: Flag = False
    """Ablation: draw the important packets at random, in the same share, instead of by magnitude."""

    def conflicts(self) -> Iterator[Mistake]:
        if len(set(self.priorities)) != len(self.priorities):
            yield Mistake("priorities", "names a class twice", list(self.priorities), "distinct classes")
        if self.random and not self.magnitude:
            yield Mistake("random", "has no effect without magnitude tagging", True, "magnitude = true as well")


class Policy(ScenarioTable):
    """A variant of the scenario: the same file with some values changed."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")]
    """Short, for file names and tables."""
    label: str = ""
    """Display name; the name if empty."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Changed values, in the shape of the file. A table is merged into the scenario's; any other value, or a table of
    another `kind`, replaces it. A table under `job` applies to every job."""


def unknown_policy_error(name: str, known: Sequence[str], where: str) -> ScenarioError:
    """Return the error for an unknown policy `name`."""
    expected = ", ".join(known) + nearest(name, known) if known else "none: the scenario has no policies"
    return ScenarioError(f'no policy "{name}"', where, expected)


def overlay(base: Any, changes: Any) -> Any:
    """Return `base` with `changes` applied by the rules of `Policy.set`. Neither argument is modified."""
    if isinstance(base, list) and isinstance(changes, dict):
        return [overlay(item, changes) for item in base]
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    if changes.get("kind", base.get("kind")) != base.get("kind"):
        return changes
    merged = dict(base)
    for key, value in changes.items():
        below = base.get(key)
        if key in NAME_OR_TABLE_KEYS and isinstance(below, str):
            below = {"kind": below}
        merged[key] = overlay(below, value) if key in base else value
    return merged
