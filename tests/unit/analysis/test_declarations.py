"""Templates of the files that declare claims: repetition, insertion, and what a name that stands alone becomes."""

from __future__ import annotations

import pytest

from gradwire.studies.reproduce.declarations import expanded, filled, read_declarations


def test_template_table_expands_to_every_combination() -> None:
    """The first list changes slowest; a value that is a table sets several names."""
    table = {"each": {"n": [8, 16], "kind": [{"key": "a", "low": 0.5}, {"key": "b", "low": "absent"}]},
             "name": "{key}, {n} workers", "low": "{low}"}  # fmt: skip
    assert list(expanded(table, {}, {})) == [
        {"name": "a, 8 workers", "low": 0.5}, {"name": "b, 8 workers", "low": None},
        {"name": "a, 16 workers", "low": 0.5}, {"name": "b, 16 workers", "low": None},
    ]  # fmt: skip


def test_placeholder_alone_is_replaced_by_its_value() -> None:
    """Lists are spliced into the surrounding list; an unknown name raises KeyError."""
    assert filled(["x", "{more}", ["y"]], {"more": ["a", "b"]}) == ["x", "a", "b", ["y"]]
    assert filled({"job": "{job}", "text": "n = {n}"}, {"job": {"workers": 8}, "n": 3}) == {
        "job": {"workers": 8}, "text": "n = 3",
    }  # fmt: skip
    (entry,) = expanded({"each": {"key": ["dlcp"]}, "text": "{key_label}"}, {}, {"dlcp": "DLCP"})
    assert entry == {"text": "DLCP"}
    with pytest.raises(KeyError):
        filled("{nothing}", {})


def test_policies_and_settings_are_declared_once() -> None:
    """A second declaration would silently replace the first one; templates are excluded."""
    for name, kind, key in (("policies", "policy", "key"), ("arms", "policy", "key"), ("settings", "setting", "name")):
        tables = read_declarations(name)[kind]
        names = [table[key] for table in tables if table[key] not in ("{key}", "{name}")]
        assert len(names) == len(set(names)) > 10
