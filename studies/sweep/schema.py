"""Pydantic models declare and check a sweep file's scenario, axes, conditions, measures and plots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.loading.explain import explain_validation_error
from gradwire.scenarios.loading.load import list_library, list_sweeps, parse_toml, read_text
from gradwire.scenarios.loading.overrides import path_steps
from gradwire.scenarios.schema.base import Count, Flag, Natural, ScenarioTable, single_mistake
from gradwire.scenarios.validation.argument_checks import require_path
from gradwire.studies.sweep.quantity import number_of

NAME = re.compile(r"[\w.+-]+")
Name = Annotated[str, Field(pattern=r"^[\w.+-]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
MOST_POINTS = 1_000_000
NAMED_BY = "a sweep file, or a name of the library"
RESERVED_COLUMNS = ("point", "seed", "state", "runs", "failed", "key")
"""Column names of the tables that axes must not use."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""A text, or a list of texts."""


class Range(ScenarioTable):
    """Values between two inclusive ends; numbers, or texts with a unit."""

    low: int | float | str = Field(alias="from")
    high: int | float | str = Field(alias="to")
    count: Annotated[int, Field(ge=2, le=100_000, strict=True)] | None = None
    """Number of values; absent: sampled, see `[sample]`."""
    scale: Literal["linear", "log"] = "linear"
    """Spacing: equal differences, or equal factors."""

    def conflicts(self) -> Iterator[Mistake]:
        low, high = number_of(self.low), number_of(self.high)
        for key, bound, number in (("from", self.low, low), ("to", self.high, high)):
            if number is None:
                yield Mistake(key, "is not a number", bound, 'a number, or one with a unit, such as "64KiB"')
        assert low is not None and high is not None
        if low.quantity != high.quantity:
            yield Mistake("to", f"has another unit than from, {self.low}", self.high, "both plain, or of one unit")
        if not low.value < high.value:
            yield Mistake("to", f"is not above from, {self.low}", self.high, "from < to")
        if self.scale == "log" and low.value <= 0:
            yield Mistake("from", "has no logarithm", self.low, "a number above zero")


class Variant(ScenarioTable):
    """One alternative for a part of the scenario."""

    name: Name
    label: str = ""
    """For plots; default: the name."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Changes to the scenario, as in a policy's `set`."""


class Axis(ScenarioTable):
    """An axis of the sweep. It has one of `values`, `range`, `variant` and `policies`."""

    name: str = ""
    """Name of its column; default: the last part of its key."""
    label: str = ""
    """For plots; default: the name."""
    key: Texts = ()
    """Location of the values in the scenario, as for `--set`; several keys all get the same value."""
    values: tuple[Any, ...] | None = Field(default=None, min_length=1)
    labels: tuple[str, ...] | None = None
    """Names of the values in tables; required for values that are tables."""
    range: Range | None = None
    variant: tuple[Variant, ...] = ()
    policies: Literal["all"] | tuple[str, ...] | None = None
    """Policies of the scenario."""
    when: str = ""
    """Condition on earlier axes; where it does not hold, the axis is left out."""
    zip: str = ""
    """Axes with the same word move together instead of forming a grid."""

    def conflicts(self) -> Iterator[Mistake]:
        kinds = ("values", "range", "variant", "policies")
        present = [kind for kind in kinds if getattr(self, kind) not in (None, ())]
        if len(present) != 1:
            what = f"has {' and '.join(present)}" if present else "has no values"
            yield Mistake("", what, None, f"one of {', '.join(kinds)}")
        if present[0] in ("values", "range"):
            self._by_key()
        elif self.key:
            yield Mistake("key", f"has no effect beside {present[0]}", list(self.key), "no key")
        if not NAME.fullmatch(self.column) or self.column in RESERVED_COLUMNS:
            what = "is a reserved column name" if self.column in RESERVED_COLUMNS else "is not a name"
            yield Mistake("name", what, self.column, "letters, digits and . _ + -, such as load")

    def _by_key(self) -> None:
        invalid = [key for key in self.key if not path_steps(key)]
        if not self.key or invalid:
            raise single_mistake(
                "key",
                "is not a path" if invalid else "is missing",
                invalid[0] if invalid else None,
                "a dotted key, such as traffic.load",
            )
        if any(path_steps(key)[0] in ("seed", "policy") for key in self.key):
            raise single_mistake(
                "key", "cannot be an axis", self.key[0], "seeds = 3 of the sweep; an axis with policies"
            )
        if self.labels is not None and (self.values is None or len(self.labels) != len(self.values)):
            raise single_mistake("labels", "does not fit the values", list(self.labels), "one label per value")
        if self.labels is None and any(isinstance(value, dict | list) for value in self.values or ()):
            raise single_mistake("labels", "is missing", None, "a label for each of the values, which are tables")

    @property
    def column(self) -> str:
        """Name in tables, conditions and plots."""
        if self.name or not self.key:
            return self.name or ("policy" if self.policies else "variant")
        return [str(step) for step in path_steps(self.key[0]) if isinstance(step, str)][-1]

    @property
    def title(self) -> str:
        """Name in plots."""
        return self.label or self.column


class Sample(ScenarioTable):
    """Sampling of ranges without a `count`. They form one axis of `count` samples, in a grid with all other axes."""

    kind: Literal["random", "latin"] = "latin"
    """"random": each value is drawn independently. "latin": each range is cut into `count` equal parts, with one value
    in each part."""
    count: Count
    seed: Natural = 1


Format = Literal["png", "pdf", "svg"]


class Plot(ScenarioTable):
    """A plot of the tables."""

    name: Name
    """Name of its file."""
    kind: Literal["lines", "heatmap", "gain", "cdf", "tail", "pareto"]
    """lines: means with bands, the 95 % interval over the seeds. heatmap: a map of means. gain: a map
    of how much faster the best of some values of an axis is than the best of the others. cdf, tail: the share of
    messages up to a time, or slower than it. pareto: two measures against each other, with a line through the Pareto
    front, where smaller is better."""
    x: str = ""
    """An axis; for pareto a measure; for cdf and tail "completion" (default) or "slowdown"."""
    y: str = ""
    """A measure; for heatmap and gain an axis."""
    value: str = ""
    """For heatmap and gain: the measure; for gain, smaller is better."""
    by: str = ""
    """An axis, with a line or colour for each of its values; for gain the axis whose values are compared."""
    gain_of: Texts = ()
    """For gain: values of `by`. Each cell shows, in percent, (best of the other values) / (best of these) - 1."""
    best_of: Texts = ()
    """For gain: further axes. In every cell, each of the two sides takes the values of these axes that are best for
    it."""
    panels: str = ""
    """An axis, with a panel for each of its values."""
    where: str = ""
    """Only points that meet this condition."""
    of: str = ""
    """For cdf and tail: name of the job or traffic; default: the first one."""
    columns: Literal[1, 2] = 1
    """Width in columns of a paper: 3.33 or 7 inches."""
    font: Literal["sans", "serif"] = "sans"
    x_scale: Literal["linear", "log"] | None = None
    y_scale: Literal["linear", "log"] | None = None
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    formats: Annotated[tuple[Format, ...], BeforeValidator(_listed), Field(min_length=1)] = ("png",)

    def conflicts(self) -> Iterator[Mistake]:
        needed = {
            "lines": ("x", "y"),
            "heatmap": ("x", "y", "value"),
            "gain": ("x", "y", "value", "by", "gain_of"),
            "pareto": ("x", "y"),
        }.get(self.kind, ())
        for key in needed:
            if not getattr(self, key):
                yield Mistake(key, "is missing", None, f"a value: {self.kind} needs {', '.join(needed)}")
        if self.kind in ("cdf", "tail") and self.x not in ("", "completion", "slowdown"):
            yield Mistake("x", "is not a distribution", self.x, "completion or slowdown")
        if self.kind == "heatmap" and self.by:
            yield Mistake("by", "has no effect on a heatmap", self.by, "panels")
        for key in ("gain_of", "best_of"):
            if getattr(self, key) and self.kind != "gain":
                yield Mistake(key, f"has no effect on a plot of kind {self.kind}", None, 'kind = "gain"')


class SweepFile(ScenarioTable):
    """Declaration of a sweep."""

    name: Name
    description: str = ""
    scenario: str | dict[str, Any]
    """A scenario file (relative to the sweep's file), a name in the library, or the scenario itself as a table."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Changes to all points, as in a policy's `set`."""
    seeds: Count | tuple[Seed, ...] | None = None
    """Number of seeds, from 1 on, or a list of them; default: the scenario's seed."""
    measures: Annotated[tuple[str, ...], Field(min_length=1)]
    """Measures that the tables show. A plain name is a measure of the first job (or traffic); "name.measure" is one of
    the job or traffic of that name."""
    axis: tuple[Axis, ...] = ()
    sample: Sample | None = None
    when: Texts = ()
    """Only points that meet all of these conditions."""
    skip: Texts = ()
    """Only points that meet none of these conditions."""
    results: Flag = False
    """Store the Results, not only their measures."""
    plot: tuple[Plot, ...] = ()

    def conflicts(self) -> Iterator[Mistake]:
        names = [axis.column for axis in self.axis]
        for number, name in enumerate(names):
            if name in names[:number]:
                yield Mistake(f"axis[{number}].name", "is taken by another axis", name, "a distinct name")
        drawn = [n for n, axis in enumerate(self.axis) if axis.range is not None and axis.range.count is None]
        if drawn and self.sample is None:
            yield Mistake(f"axis[{drawn[0]}].range.count", "is missing", None, "a number of values, or [sample]")
        if self.sample is not None and not drawn:
            yield Mistake("sample", "has no effect", None, "an axis with a range that has no count")
        for number in drawn:
            if self.axis[number].zip or self.axis[number].when:
                what = "is sampled, and can have neither zip nor when"
                yield Mistake(f"axis[{number}]", what, None, "values or a count")
        seeds = self.seeds if isinstance(self.seeds, tuple) else ()
        if len(set(seeds)) != len(seeds) or self.seeds == ():
            yield Mistake("seeds", "is empty or has duplicates", list(seeds), "a number of seeds, or distinct ones")
        plots = [plot.name for plot in self.plot]
        if len(set(plots)) != len(plots):
            yield Mistake("plot", "has duplicate names", ", ".join(plots), "distinct names")


def plot_files(file: SweepFile, folder: Path) -> dict[str, list[Path]]:
    """Return the files of the plots that a sweep declares, by the plot's name."""
    return {plot.name: [folder / f"{plot.name}.{kind}" for kind in plot.formats] for plot in file.plot}


def load_sweep(source: str | Path) -> tuple[SweepFile, Path, str]:
    """Load a sweep from a file, or by name from the library; return it with the folder of its file and its text. An
    existing file takes precedence. Raises `ScenarioError` with every error."""
    path = require_path(source, "load_sweep(source)", NAMED_BY, ScenarioError).expanduser()
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
    """Build a sweep from tables as `tomllib` returns them. Raises `ScenarioError` with every error."""
    try:
        return SweepFile.model_validate(tables)
    except ValidationError as error:
        errors = explain_validation_error(error, tables, SweepFile)
    count = f"{len(errors)} error{'s' * (len(errors) != 1)}"
    raise ScenarioError(f"invalid sweep: {count}", where, mistakes=errors)
