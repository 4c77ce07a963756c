"""`keys_without_effect` walks a scenario's tables and notes each set key whose `Precondition` (`effect_conditions`) is
not met.

Users look in the wrong place for the cause of "the same result whatever I set". Every field declares its precondition
(`gradwire.scenarios.schema.effect_conditions`). This module walks all tables of a scenario and notes each key that
differs from its default while its precondition is not met.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from gradwire.scenarios.schema.base import ScenarioTable
from gradwire.scenarios.schema.effect_conditions import Precondition, Scenario, TableContext

INDEX = re.compile(r"\[[0-9]+\]")
OWNERS = ("job", "traffic")
VARIANT_TABLES = ("policy",)
"""Tables that describe other scenarios."""


class SetKey(NamedTuple):
    """A key set to a value other than its default, by its path; `note` if it has no effect."""

    place: str
    note: str


def keys_without_effect(*variants: Scenario) -> list[str]:
    """Return one note per key that is set and has no effect, in the order of the file's tables. Of several variants,
    such as the policies of one file, a key is without effect if it has none in every variant that sets it."""
    keys = [key for variant in variants for key in _keys(variant, variant, "", None)]
    useful = {key.place for key in keys if not key.note}
    return list(dict.fromkeys(key.note for key in keys if key.note and key.place not in useful))


def keys_without_effect_in_runs(*variants: Scenario) -> list[str]:
    """Return the notes of `keys_without_effect` for runs, which ignore [training]."""
    return keys_without_effect(*(variant.model_copy(update={"training": None}) for variant in variants))


def note_on_key(scenario: Scenario, key: str) -> str:
    """Return the note on a key, such as "job.exchange.bucket", that has no effect in any table; "" otherwise."""
    run = scenario.model_copy(update={"training": None})
    notes = [each.note for each in _keys(run, run, "", None) if INDEX.sub("", each.place) == INDEX.sub("", key)]
    return notes[0] if notes and all(notes) else ""


def preconditions_of(table: type[ScenarioTable]) -> dict[str, list[Precondition]]:
    """Return the declared preconditions of a table's fields, by key; all of a field's have to be met."""
    needs_by_key = {}
    for key, field in table.model_fields.items():
        needs = [each for each in field.metadata if isinstance(each, Precondition)]
        if needs:
            needs_by_key[key] = needs
    return needs_by_key


def _keys(scenario: Scenario, table: ScenarioTable, path: str, owner: Any) -> Iterator[SetKey]:
    declared = preconditions_of(type(table))
    for key in type(table).model_fields:
        if key not in table.model_fields_set or (table is scenario and key in VARIANT_TABLES):
            continue
        value = getattr(table, key)
        place = f"{path}.{key}" if path else key
        if key in declared:
            is_default = value == type(table).model_fields[key].get_default(call_default_factory=True)
            situation = TableContext(scenario, table, owner)
            unmet = [
                need for need in declared[key] if (need.names_default or not is_default) and not need.met(situation)
            ]
            if unmet or not is_default:
                yield SetKey(place, _note(place, unmet))
            if unmet:
                continue
        yield from _inside(scenario, value, place, owner, key if table is scenario else "")


def _note(path: str, unmet: list[Precondition]) -> str:
    """Return the note on a key with unmet preconditions, or "" if all are met. Its remedies together suffice."""
    if not unmet:
        return ""
    reach = f" {unmet[0].reach}" if unmet[0].reach else ""
    remedies = ", and ".join(dict.fromkeys(need.remedy for need in unmet))
    return f"{path} has no effect{reach}: {unmet[0].why}; for it to matter: {remedies}"


def _inside(scenario: Scenario, value: Any, path: str, owner: Any, root: str) -> Iterator[SetKey]:
    """Yield the keys of the tables in a value. `root`: its key if it belongs to the scenario itself."""
    if isinstance(value, ScenarioTable):
        yield from _keys(scenario, value, path, owner)
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            if isinstance(each, ScenarioTable):
                yield from _keys(scenario, each, f"{path}[{index}]", each if root in OWNERS else owner)
