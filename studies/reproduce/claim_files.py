"""`read_claims` reads claims and their settings from `settings.toml` and the files of `claims/`.

The `value` of an expectation is a name of `VALUES` and what its function takes after the settings; `in` is one setting
or several. `blame` is a policy in the last of them. `published` has the fields of `PublishedNumber`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.policy import overlay
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.claim_values import VALUES
from gradwire.studies.reproduce.declarations import expanded, filled, read_declarations
from gradwire.studies.reproduce.policies import POLICIES
from gradwire.studies.reproduce.published import PublishedNumber

LABELS = {key: policy.label for key, policy in POLICIES.items()}


def read_claims(name: str) -> list[Claim]:
    """Return the claims of a set, in order."""
    shared, values, settings = _shared()
    tables = read_declarations(f"claims/{name}")
    values = _values(tables["values"], values)
    return [_claim(shared[table["use"]] if "use" in table else table, values, settings) for table in tables["claim"]]


@cache
def _shared() -> tuple[dict[str, Json], Json, dict[str, Json]]:
    """Return what all sets may use: claims by id, values, and settings by name."""
    tables = read_declarations("settings")
    values, settings = _values(tables["values"], {}), {"": Json()}
    for table in tables["setting"]:
        for entry in expanded(table, values, LABELS):
            settings[entry["name"]] = _changed(settings[entry.pop("base", "")], entry)
    return {claim["id"]: claim for claim in tables["claim"]}, values, settings


def _values(table: Json, known: Mapping[str, Any]) -> Json:
    """Return named values; each may use those before it."""
    values = dict(known)
    for name, value in table.items():
        values[name] = filled(value, values)
    return values


def _changed(base: Json, entry: Json) -> Json:
    """Return a setting's table, changed by an entry; policies of a quick run are part of the choice of policies."""
    if "policies" in entry:
        base = {key: value for key, value in base.items() if key != "quick_policies"}
    overlays = {key: overlay(base.get(key, {}), entry.get(key, {})) for key in ("changes", "testbed")}
    return base | entry | overlays


def _claim(table: Json, values: Json, settings: Mapping[str, Json]) -> Claim:
    claim = filled({key: value for key, value in table.items() if key != "expect"}, values)
    entries = [{"name": entry} if isinstance(entry, str) else entry for entry in claim.pop("settings")]
    return Claim(
        **claim,
        settings=tuple(_setting(_changed(settings[entry["name"]], entry)) for entry in entries),
        expects=tuple(expect for entry in table["expect"] for expect in _expects(entry, values)),
    )


def _setting(table: Json) -> Setting:
    fields: Json = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return Setting(**fields)


def _expects(table: Json, values: Json) -> Iterator[Expect]:
    for entry in expanded(table, values, LABELS):
        (kind, *arguments), names = entry.pop("value"), entry.pop("in")
        names = [names] if isinstance(names, str) else names
        function, unit = VALUES[kind]
        if "published" in entry:
            entry["published"] = PublishedNumber(**entry["published"])
        if "blame" in entry:
            entry["blame"] = (names[-1], entry["blame"])
        defaults = {"unit": unit, "interval": kind == "difference"}
        yield Expect(**defaults | entry, value=function(*names, *arguments), settings=tuple(names))
