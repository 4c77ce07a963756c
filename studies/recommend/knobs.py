"""`Knob` names a key of a scenario and the values to try; `default_knobs` proposes those that cost no hardware.

A knob's first value is the user's own and changes nothing. Keys that cannot have an effect in a scenario, by their
preconditions (`gradwire.scenarios.schema.effect_conditions`), are left out with the reason, and so are values that no
combination allows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.loading.overrides import apply_overrides, path_steps
from gradwire.scenarios.loading.registry import COMPONENT_PACKAGES, component, components
from gradwire.scenarios.loading.toml import inline_toml, read_toml
from gradwire.scenarios.schema.policy import NAME_OR_TABLE_KEYS
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import Bytes, format_size
from gradwire.scenarios.validation.effect import note_on_key
from gradwire.studies.sweep.quantity import number_of

TRANSPORTS = ("dctcp", "cubic", "swift", "dlcp", "ndp", "nscc")
LOSSLESS_TRANSPORTS = ("dcqcn", "hpcc", "timely")
"""Transports that are tried where the scenario's switches allow them, the latter with priority flow control; not
reference models, nor those whose switches are not on sale."""
BALANCERS = ("ecmp", "flowlet", "least_queue", "spray_random")
ALL_REDUCES = ("ring", "halving_doubling", "double_tree", "transpose", "hierarchical")
THRESHOLDS = (0.125, 0.25, 0.5, 1.0)
"""ECN thresholds, as parts of the rate times the longest base round trip (our choice: around 0.17, which suffices for
DCTCP, Alizadeh et al., SIGMETRICS 2011)."""
UNITS = (0.0625, 0.25, 4.0)
"""Sizes of buckets or partitions, relative to the user's (our choice)."""
HARDWARE = "link rates, topology, hosts, GPUs and buffers are not searched: they are bought, not set"


@dataclass(frozen=True)
class Knob:
    """A key and its values, the user's own first; None if that is absent."""

    key: str
    values: tuple[Any, ...]

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """Rank of each value by size; None if they have no order."""
        numbers = [number_of(value) for value in self.values]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers) or len({number.quantity for number in known}) > 1:
            return None
        order = sorted(number.value for number in known)
        return tuple(order.index(number.value) for number in known)

    def text(self, index: int) -> str:
        """Return one value as a line of TOML."""
        value = self.values[index]
        return f"{self.key} absent" if value is None else f"{self.key} = {inline_toml(value)}"

    def short_text(self, index: int) -> str:
        """Return one value without its key."""
        value = self.values[index]
        return "absent" if value is None else value if isinstance(value, str) else inline_toml(value)

    @property
    def short_name(self) -> str:
        """Last name of the key, or the table's if that is "kind"."""
        names = [str(step) for step in path_steps(self.key) if isinstance(step, str)]
        return names[-2] if names[-1] == "kind" and len(names) > 1 else names[-1]

    def applied(self, tables: Json, index: int) -> Json:
        """Return a scenario's tables with one value. A new kind keeps those keys of the table that it has as well."""
        steps = path_steps(self.key)
        if not index:
            return tables
        if _is_kind(self.key):
            return _with_kind(tables, steps[:-1], self.values[index])  # type: ignore[no-any-return]
        return apply_overrides(tables, [f"{self.key}={inline_toml(self.values[index])}"])


def _is_kind(key: str) -> bool:
    """Return True if a key chooses a component, such as "job.exchange.kind"."""
    steps = path_steps(key)
    return len(steps) > 1 and steps[-1] == "kind" and steps[-2] in COMPONENT_PACKAGES


def _with_kind(here: Any, steps: Sequence[str | int], kind: Any) -> Any:
    """Return tables in which the table at a path has another kind."""
    if isinstance(here, list):
        at = steps[0] if isinstance(steps[0], int) else None
        inner = steps if at is None else steps[1:]
        return [_with_kind(each, inner, kind) if at in (None, number) else each for number, each in enumerate(here)]
    step, *rest = steps
    here = here if isinstance(here, dict) else {}
    table = here.get(step, {})
    if rest:
        return {**here, step: _with_kind(table, rest, kind)}
    table = {"kind": table} if isinstance(table, str) else table
    owner = component(str(step), kind) if isinstance(kind, str) else None
    kept = {key: value for key, value in table.items() if owner is None or key in owner.model_fields}
    new = {**kept, "kind": kind}
    return {**here, step: kind if len(new) == 1 and step in NAME_OR_TABLE_KEYS else new}


def value_at(scenario: Scenario, key: str) -> Any:
    """Return the value of a key as a file would hold it; None if it is absent. Of several tables the first counts."""
    here: Any = scenario.model_dump(mode="json")
    for step in path_steps(key):
        if isinstance(here, list) and isinstance(step, str):
            here = here[0] if here else None
        try:
            here = here[step]
        except (LookupError, TypeError):
            return None
    return here


@dataclass(frozen=True)
class Settings:
    """The combinations of knobs of a scenario.

    left_out : keys or values that are not searched, and why. _problems, _notes : those of settings so far; building a
        scenario takes milliseconds.
    """

    scenario: Scenario
    knobs: tuple[Knob, ...]
    left_out: tuple[str, ...] = ()
    _problems: dict[tuple[int, ...], Mistake | None] = field(default_factory=dict, compare=False, repr=False)
    _notes: dict[tuple[tuple[int, ...], int], str] = field(default_factory=dict, compare=False, repr=False)

    def tables(self, setting: Sequence[int]) -> Json:
        """Return the tables of the scenario with a setting; kinds come first, as other keys depend on them."""
        tables: Json = {key: value for key, value in self.scenario.as_written().items() if key != "policy"}
        pairs = sorted(zip(self.knobs, setting, strict=True), key=lambda pair: not pair[0].key.endswith("kind"))
        for knob, index in pairs:
            tables = knob.applied(tables, index)
        return tables

    def scenario_of(self, setting: Sequence[int]) -> Scenario:
        """Return the scenario with a setting. Raises `ScenarioError` if they do not fit."""
        built = build_scenario(self.tables(setting), self.name(setting) or self.scenario.name)
        return built if self.scenario.folder is None else built.at(self.scenario.folder)

    def texts(self, setting: Sequence[int]) -> list[str]:
        """Return the changes of a setting as lines of TOML."""
        return [knob.text(index) for knob, index in zip(self.knobs, setting, strict=True) if index]

    def name(self, setting: Sequence[int]) -> str:
        """Return the changes of a setting as one text; "" for the user's own."""
        return ", ".join(self.texts(setting))

    def problem(self, setting: tuple[int, ...]) -> Mistake | None:
        """Return why a setting cannot be run; None if it can."""
        if setting not in self._problems:
            self._problems[setting] = None
            try:
                self.scenario_of(setting)
            except ScenarioError as error:
                mistake = Mistake(error.where, error.what, expected=error.expected)
                self._problems[setting] = replace((error.mistakes or [mistake])[0], value=None)
        return self._problems[setting]

    def canonical(self, setting: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the setting without changes of keys that have no effect in it; None if it is invalid."""
        if self.problem(setting):
            return None
        for number, index in enumerate(setting):
            if index and self.note(setting, number):
                return self.canonical((*setting[:number], 0, *setting[number + 1 :]))
        return setting

    def note(self, setting: tuple[int, ...], number: int) -> str:
        """Return the note on a knob whose key has no effect in a setting, or "". Defaults carry no notes, so any other
        value's counts as well."""
        knob = self.knobs[number]
        for index in dict.fromkeys((setting[number], *range(1, len(knob.values)))):
            probe = (*setting[:number], index, *setting[number + 1 :])
            if (probe, number) not in self._notes:
                is_valid = not self.problem(probe)
                self._notes[probe, number] = note_on_key(self.scenario_of(probe), knob.key) if is_valid else ""
            if note := self._notes[probe, number]:
                return note
        return ""

    def with_usable_values(self, explicit: bool) -> Settings:
        """Return the settings without values that are invalid, or have no effect, in every combination of two knobs.
        Raises `ScenarioError` for such a value if the user named it."""
        left_out = list(self.left_out)
        keep: dict[str, list[Any]] = {knob.key: [knob.values[0]] for knob in self.knobs}
        for number, knob in enumerate(self.knobs):
            reasons: dict[str, list[str]] = {}
            texts: dict[str, str] = {}
            for index in range(1, len(knob.values)):
                reason = self._reason(number, index)
                if reason is None:
                    keep[knob.key].append(knob.values[index])
                elif explicit:
                    what = f"{reason.path}: {reason.what}" if reason.path not in ("", knob.key) else reason.what
                    raise ScenarioError(what, f"knob {knob.text(index)}", reason.expected)
                else:
                    texts.setdefault(reason.path, str(reason).removeprefix(f"{knob.key}: "))
                    reasons.setdefault(reason.path, []).append(inline_toml(knob.values[index]))
            whole = len(keep[knob.key]) == 1 and len(reasons) == 1
            for path, values in reasons.items():
                which = "" if whole else f" = {', '.join(values)}"
                left_out.append(f"{knob.key}{which}: {texts[path]}")
        knobs = [Knob(key, tuple(values)) for key, values in keep.items() if len(values) > 1]
        return Settings(self.scenario, tuple(knobs), tuple(left_out))

    def _reason(self, number: int, index: int) -> Mistake | None:
        """Return why a value is of no use, neither alone nor beside another knob's; None if it is."""
        alone = tuple(index if at == number else 0 for at in range(len(self.knobs)))
        reason = None
        for setting in self._beside(alone, number):
            problem = self.problem(setting)
            if problem is None:
                key, _, why = self.note(setting, number).partition(" has no effect")
                problem = Mistake(key, f"has no effect{why}") if why else None
            if problem is None:
                return None
            reason = reason or problem
        return reason

    def _beside(self, alone: tuple[int, ...], number: int) -> Iterator[tuple[int, ...]]:
        yield alone
        for other, knob in enumerate(self.knobs):
            if other != number:
                for index in range(1, len(knob.values)):
                    yield (*alone[:other], index, *alone[other + 1 :])


def default_values(scenario: Scenario, bandwidth_delay: float | None) -> dict[str, list[Any]]:
    """Return the keys that `recommend` tries by itself, with values. `bandwidth_delay` : bytes; None if unknown."""
    transports = (*TRANSPORTS, *(LOSSLESS_TRANSPORTS if scenario.switch.pfc else ()))
    values: dict[str, list[Any]] = {"transport.kind": [*transports], "load_balancing": [*BALANCERS]}
    if bandwidth_delay:
        sizes = [format_size(Bytes(max(1, round(part * bandwidth_delay / 1024)) * 1024)) for part in THRESHOLDS]
        values["switch.ecn_threshold"] = list(dict.fromkeys(sizes))
    if scenario.job:
        exchange = scenario.job[0].exchange
        values |= {"job.order": ["fifo", "layer"], "job.tagging.layer_priority": [False, True]}
        if exchange.kind in ALL_REDUCES:
            values["job.exchange.kind"] = [*ALL_REDUCES]
        if exchange.unit_key and (size := getattr(exchange, exchange.unit_key)):
            units = [format_size(Bytes(max(4, int(size * part) // 4 * 4))) for part in UNITS]
            values[f"job.exchange.{exchange.unit_key}"] = units
    return values


def settings_of(
    scenario: Scenario, knobs: Mapping[str, Sequence[Any] | None] | None, bandwidth_delay: float | None
) -> Settings:
    """Return the settings of a scenario to search.

    knobs : values by key, None for the default values of a key; default: all keys that can have an effect.

    Raises `ScenarioError` for a key or value that the scenario does not have, or that has no effect.
    """
    defaults = default_values(scenario, bandwidth_delay)
    chosen: dict[str, Sequence[Any]] = {}
    for key, values in (defaults if knobs is None else knobs).items():
        if values is None and key not in defaults:
            expected = f"values, {key}=A,B, or one of {', '.join(defaults)}{nearest(key, defaults)}"
            raise ScenarioError("has no default values", f"knob {key}", expected)
        _check_key(key, scenario)
        chosen[key] = defaults[key] if values is None else values
    usable = Settings(scenario, tuple(_knob(scenario, key, values) for key, values in chosen.items()))
    explicit = knobs is not None and all(values is not None for values in knobs.values())
    settings = usable.with_usable_values(explicit)
    if not settings.knobs:
        reasons = "; ".join(settings.left_out) or "every knob has the scenario's value only"
        raise ScenarioError(f"nothing to search: {reasons}", scenario.display_name, "a knob with another value")
    return settings


def _check_key(key: str, scenario: Scenario) -> None:
    steps = path_steps(key)
    if not steps:
        raise ScenarioError("is not a key", f"knob {key}", "a dotted key, such as transport.kind")
    if steps[0] in ("seed", "policy", "output", "measure", "modules") or steps[-1] in ("name", "description"):
        raise ScenarioError("cannot be a knob", f"knob {key}", "a setting of the network or of a job")
    if steps[0] in ("job", "traffic"):
        tables, index = getattr(scenario, str(steps[0])), steps[1] if len(steps) > 1 else 0
        if isinstance(index, int) and index >= len(tables):
            what = f"the scenario has {len(tables) or 'no'} [[{steps[0]}]]"
            raise ScenarioError(what, f"knob {key}", "a key of an existing table")


def _knob(scenario: Scenario, key: str, values: Sequence[Any]) -> Knob:
    """Return a knob with the user's value first, and no value twice. Raises `ScenarioError` for an unknown kind."""
    steps = path_steps(key)
    if not values:
        raise ScenarioError("has no values", f"knob {key}", "values, such as transport.kind=dctcp,cubic")
    if _is_kind(key):
        known = components(str(steps[-2]))
        for value in values:
            if not isinstance(value, str) or (":" not in value and value not in known):
                expected = f"one of {', '.join(known)}{nearest(str(value), known)}"
                raise ScenarioError(f"unknown {steps[-2]} {value!r}", f"knob {key}", expected)
    for value in values:
        try:
            inline_toml(value)
        except (TypeError, RecursionError) as error:
            raise ScenarioError(str(error), f"knob {key}", "texts, numbers, booleans, lists and tables") from None
    own = value_at(scenario, key)
    distinct: dict[str, Any] = {}
    for value in values:
        try:
            shown = value_at(Settings(scenario, (Knob(key, (own, value)),)).scenario_of((1,)), key)
        except ScenarioError:
            shown = value
        if shown != own:
            distinct.setdefault(repr(shown), value)
    return Knob(key, (own, *distinct.values()))


def parse_knob(text: str) -> tuple[str, list[Any] | None]:
    """Return the key and the values of "transport.kind=dctcp,cubic"; None for a key alone. Values are TOML, or texts
    that need no quotes. Raises `ScenarioError`."""
    key, equals, listed = text.partition("=")
    if not equals:
        return key.strip(), None
    try:
        return key.strip(), list(read_toml(f"values = [{listed}]")["values"])
    except tomllib.TOMLDecodeError:
        return key.strip(), [_parsed(part.strip()) for part in listed.split(",") if part.strip()]


def _parsed(text: str) -> Any:
    try:
        return read_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
