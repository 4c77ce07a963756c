"""What a sweep file holds: a scenario, axes, conditions, measures and plots, as pydantic models like those of
scenarios.

    name = "load"
    scenario = "websearch"
    measures = ["slowdown_p99"]
    seeds = 3

    [[axis]]
    key = "traffic.load"
    values = [0.2, 0.5, 0.8]

    [[plot]]
    name = "tail"
    kind = "lines"
    x = "load"
    y = "slowdown_p99"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from gradwire.analysis.sweeps.quantity import number_of
from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.explain import explain
from gradwire.scenarios.given import path_of
from gradwire.scenarios.load import list_library, list_sweeps, parse_toml, read_text
from gradwire.scenarios.overrides import steps_of
from gradwire.scenarios.schema.base import Count, Flag, Natural, Table, refuse

NAME = re.compile(r"[\w.+-]+")
Name = Annotated[str, Field(pattern=r"^[\w.+-]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
MOST_POINTS = 1_000_000
NAMED_BY = "a sweep file, or a name of the library"
BESIDES = ("point", "seed", "state", "runs", "failed", "key")
"""Names that tables have for themselves."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""A text, or a list of them."""


class Range(Table):
    """Values between two ends, which count; numbers, or texts with a unit."""

    low: int | float | str = Field(alias="from")
    high: int | float | str = Field(alias="to")
    count: Annotated[int, Field(ge=2, le=100_000, strict=True)] | None = None
    """How many values; absent: drawn, as `[sample]` of the sweep says."""
    scale: Literal["linear", "log"] = "linear"
    """Whether neighbours differ by the same amount, or by the same factor."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = number_of(self.low), number_of(self.high)
        for key, given, number in (("from", self.low, low), ("to", self.high, high)):
            if number is None:
                raise refuse(key, "is no number", given, 'a number, or one with a unit, such as "64KiB"')
        assert low is not None and high is not None
        if low.quantity != high.quantity:
            raise refuse("to", f"is of another kind than from, {self.low}", self.high, "both plain, or of one unit")
        if not low.value < high.value:
            raise refuse("to", f"is not above from, {self.low}", self.high, "from < to")
        if self.scale == "log" and low.value <= 0:
            raise refuse("from", "has no logarithm", self.low, "a number above zero")
        return self


class Variant(Table):
    """One of several ways to write a part of the scenario."""

    name: Name
    label: str = ""
    """For plots; the name if empty."""
    set: dict[str, Any] = Field(default_factory=dict)
    """What is different, as in a policy's `set`."""


class Axis(Table):
    """What points differ in. It has one of `values`, `range`, `variant` and `policies`."""

    name: str = ""
    """Of its column; the last part of its key if empty."""
    label: str = ""
    """For plots; the name if empty."""
    key: Texts = ()
    """Where values stand in the scenario, as for `--set`; of several all get the same value."""
    values: tuple[Any, ...] | None = Field(default=None, min_length=1)
    labels: tuple[str, ...] | None = None
    """What values are called in tables; tables need it, others are called as they are written."""
    range: Range | None = None
    variant: tuple[Variant, ...] = ()
    policies: Literal["all"] | tuple[str, ...] | None = None
    """Policies of the scenario."""
    when: str = ""
    """The axis applies to points for which this condition on axes before it holds; elsewhere it is left out."""
    zip: str = ""
    """Axes with the same word move together, instead of each with each."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        ways = ("values", "range", "variant", "policies")
        given = [way for way in ways if getattr(self, way) not in (None, ())]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "has no values"
            raise refuse("", what, None, f"one of {', '.join(ways)}")
        if given[0] in ("values", "range"):
            self._keyed()
        elif self.key:
            raise refuse("key", f"has no effect beside {given[0]}", list(self.key), "no key")
        if not NAME.fullmatch(self.column) or self.column in BESIDES:
            what = "is a word of the tables" if self.column in BESIDES else "is no name"
            raise refuse("name", what, self.column, "letters, digits and . _ + -, such as load")
        return self

    def _keyed(self) -> None:
        mistakes = [key for key in self.key if not steps_of(key)]
        if not self.key or mistakes:
            raise refuse("key", "is no path" if mistakes else "is missing", mistakes[0] if mistakes else None,
                         "a dotted key, such as traffic.load")  # fmt: skip
        if any(steps_of(key)[0] in ("seed", "policy") for key in self.key):
            raise refuse("key", "is no axis", self.key[0], "seeds = 3 of the sweep; an axis with policies")
        if self.labels is not None and (self.values is None or len(self.labels) != len(self.values)):
            raise refuse("labels", "does not fit the values", list(self.labels), "one for each of values")
        if self.labels is None and any(isinstance(each, dict | list) for each in self.values or ()):
            raise refuse("labels", "is missing", None, "a name for each of the values, which are tables")

    @property
    def column(self) -> str:
        """Its name in tables, conditions and plots."""
        if self.name or not self.key:
            return self.name or ("policy" if self.policies else "variant")
        return [str(step) for step in steps_of(self.key[0]) if isinstance(step, str)][-1]

    @property
    def title(self) -> str:
        """Its name in plots."""
        return self.label or self.column


class Sample(Table):
    """How values of ranges without a `count` are drawn: together, so many points, beside all other axes."""

    kind: Literal["random", "latin"] = "latin"
    """"random": independently. "latin": so that each of `count` equal parts of each range has one value."""
    count: Count
    seed: Natural = 1


Format = Literal["png", "pdf", "svg"]


class Plot(Table):
    """A picture of the table."""

    name: Name
    """Of its file."""
    kind: Literal["lines", "heatmap", "cdf", "tail", "pareto"]
    """lines: means with bands, the 95 % interval over the seeds. heatmap: a map of means. cdf, tail: the share of
    messages that took so long or less, or so long or longer. pareto: two measures against each other, with a line
    through those that none is better than in both, where smaller is better."""
    x: str = ""
    """An axis; of pareto a measure; of cdf and tail "completion" (if empty) or "slowdown"."""
    y: str = ""
    """A measure; of heatmap an axis."""
    value: str = ""
    """Of heatmap: the measure."""
    by: str = ""
    """An axis, with a line or colour for each of its values."""
    panels: str = ""
    """An axis, with a picture beside the others for each of its values."""
    where: str = ""
    """Only points for which this condition holds."""
    of: str = ""
    """Of cdf and tail: the job or traffic; the first if empty."""
    columns: Literal[1, 2] = 1
    """Of a paper that it is as wide as: 3.33 or 7 inches."""
    font: Literal["sans", "serif"] = "sans"
    x_scale: Literal["linear", "log"] | None = None
    y_scale: Literal["linear", "log"] | None = None
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    formats: Annotated[tuple[Format, ...], BeforeValidator(_listed), Field(min_length=1)] = ("png",)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = {"lines": ("x", "y"), "heatmap": ("x", "y", "value"), "pareto": ("x", "y")}.get(self.kind, ())
        for key in needed:
            if not getattr(self, key):
                raise refuse(key, "is missing", None, f"what stands there: {self.kind} needs {', '.join(needed)}")
        if self.kind in ("cdf", "tail") and self.x not in ("", "completion", "slowdown"):
            raise refuse("x", "is no distribution", self.x, "completion or slowdown")
        if self.kind == "heatmap" and self.by:
            raise refuse("by", "has no effect on a heatmap", self.by, "panels")
        return self


class SweepFile(Table):
    """A sweep as it is declared."""

    name: Name
    description: str = ""
    scenario: str | dict[str, Any]
    """A scenario file (from the sweep's folder), a name of the library, or the scenario itself as a table."""
    set: dict[str, Any] = Field(default_factory=dict)
    """What is different in all points, as in a policy's `set`."""
    seeds: Count | tuple[Seed, ...] | None = None
    """How many seeds, from 1 on, or which; that of the scenario if absent."""
    measures: Annotated[tuple[str, ...], Field(min_length=1)]
    """Figures that tables have, of the first job (or traffic), or "name.figure" of another one."""
    axis: tuple[Axis, ...] = ()
    sample: Sample | None = None
    when: Texts = ()
    """Only points for which all of these conditions hold."""
    skip: Texts = ()
    """And for which none of these does."""
    results: Flag = False
    """Keep the Results, not only their figures."""
    plot: tuple[Plot, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        names = [axis.column for axis in self.axis]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise refuse(f"axis[{number}].name", "is taken by another axis", name, "a name of its own")
        drawn = [n for n, axis in enumerate(self.axis) if axis.range is not None and axis.range.count is None]
        if drawn and self.sample is None:
            raise refuse(f"axis[{drawn[0]}].range.count", "is missing", None, "how many values, or [sample]")
        if self.sample is not None and not drawn:
            raise refuse("sample", "draws nothing", None, "an axis with a range that has no count")
        for number in drawn:
            if self.axis[number].zip or self.axis[number].when:
                what = "is drawn, and can have neither zip nor when"
                raise refuse(f"axis[{number}]", what, None, "values or a count")
        seeds = self.seeds if isinstance(self.seeds, tuple) else ()
        if len(set(seeds)) != len(seeds) or self.seeds == ():
            raise refuse("seeds", "names none, or one twice", list(seeds), "how many, or distinct ones")
        plots = [each.name for each in self.plot]
        if len(set(plots)) != len(plots):
            raise refuse("plot", "has a name twice", ", ".join(plots), "distinct names")
        return self


def pictures(file: SweepFile, folder: Path) -> dict[str, list[Path]]:
    """The files of the plots that a sweep declares, by the plot's name."""
    return {plot.name: [folder / f"{plot.name}.{kind}" for kind in plot.formats] for plot in file.plot}


def load_sweep(source: str | Path) -> tuple[SweepFile, Path, str]:
    """A sweep from a file, or by name from the library; with the folder of its file and its text. A bare name is a
    file if there is one. Raises `ScenarioError` with every mistake."""
    path = path_of(source, "load_sweep(source)", NAMED_BY, ScenarioError).expanduser()
    if str(source) in list_sweeps() and not path.exists():
        path = Path(str(resources.files("gradwire.scenarios") / "library" / "sweeps" / f"{source}.toml"))
    elif not path.exists():
        if str(source) in list_library():
            raise ScenarioError("is a scenario, not a sweep", str(source), f"gradwire compare {source}")
        known = list_sweeps()
        expected = f"a file, or one of the library: {', '.join(known)}{nearest(str(source), known)}"
        raise ScenarioError("no such sweep", str(source), expected)
    text = read_text(path, "a sweep file (.toml)")
    return build_sweep(parse_toml(path, text), str(source)), path.resolve().parent, text


def build_sweep(tables: Mapping[str, Any], where: str = "sweep") -> SweepFile:
    """A sweep from tables as `tomllib` returns them. Raises `ScenarioError` with every mistake."""
    try:
        return SweepFile.model_validate(tables)
    except ValidationError as error:
        mistakes = explain(error, tables, SweepFile)
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    raise ScenarioError(f"is no valid sweep, {count}:", where, mistakes=mistakes)
