"""Keys without effect: those that a scenario sets though what they need to matter is not there.

Users look for the cause of "the same result whatever I set" in the wrong place. Every field says beside itself what it
needs (`gradwire.scenarios.schema.effect_conditions`). Here all tables of a scenario are walked, and each key that
differs from its default and whose need is not met becomes one note.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from gradwire.scenarios.schema.base import Table
from gradwire.scenarios.schema.effect_conditions import Needs, Scenario, Situation

OWNERS = ("job", "traffic")
APART = ("policy",)
"""Tables that say how another scenario is made."""


class SetKey(NamedTuple):
    """A key that was set, not to its default, by its place in the scenario; `note` if it cannot matter."""

    place: str
    note: str


def keys_without_effect(*variants: Scenario) -> list[str]:
    """Return one note for each key that was set and cannot matter, in the order of the file's tables.

    Of several variants, such as the policies of one file, a key is without effect if it is so wherever it is set.
    """
    keys = [key for variant in variants for key in _keys(variant, variant, "", None)]
    useful = {key.place for key in keys if not key.note}
    return list(dict.fromkeys(key.note for key in keys if key.note and key.place not in useful))


def keys_without_effect_in_runs(*variants: Scenario) -> list[str]:
    """Return the notes of `keys_without_effect` for runs, in which a table [training] plays no part."""
    return keys_without_effect(*(variant.model_copy(update={"training": None}) for variant in variants))


def needs_of(table: type[Table]) -> dict[str, list[Needs]]:
    """Return the declared needs of a table's fields, by key; all of a field's have to be met."""
    found = {}
    for key, field in table.model_fields.items():
        needs = [each for each in field.metadata if isinstance(each, Needs)]
        if needs:
            found[key] = needs
    return found


def _keys(scenario: Scenario, table: Table, path: str, owner: Any) -> Iterator[SetKey]:
    declared = needs_of(type(table))
    for key in type(table).model_fields:
        if key not in table.model_fields_set or (table is scenario and key in APART):
            continue
        value = getattr(table, key)
        place = f"{path}.{key}" if path else key
        if key in declared:
            is_default = value == type(table).model_fields[key].get_default(call_default_factory=True)
            situation = Situation(scenario, table, owner)
            unmet = [
                need for need in declared[key]
                if (need.names_default or not is_default) and not need.met(situation)
            ]  # fmt: skip
            if unmet or not is_default:
                yield SetKey(place, _note(place, unmet))
            if unmet:
                continue
        yield from _inside(scenario, value, place, owner, key if table is scenario else "")


def _note(place: str, unmet: list[Needs]) -> str:
    """Return the note on a key some of whose needs are not met; "" if all are. Its remedies together are enough."""
    if not unmet:
        return ""
    reach = f" {unmet[0].reach}" if unmet[0].reach else ""
    remedies = ", and ".join(dict.fromkeys(need.remedy for need in unmet))
    return f"{place} has no effect{reach}: {unmet[0].why}; for it to matter: {remedies}"


def _inside(scenario: Scenario, value: Any, place: str, owner: Any, root: str) -> Iterator[SetKey]:
    """Yield the keys of the tables in a value. `root`: the key of the scenario that has it, if it is one."""
    if isinstance(value, Table):
        yield from _keys(scenario, value, place, owner)
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            if isinstance(each, Table):
                yield from _keys(scenario, each, f"{place}[{index}]", each if root in OWNERS else owner)
