"""What fields mean is read from the docstrings below them, when somebody asks."""

from gradwire.scenarios.schema.base import Count, ScenarioTable
from gradwire.scenarios.schema.field_docs import describe, description
from gradwire.scenarios.schema.network.traffic import TrafficTable
from gradwire.scenarios.schema.scenario import json_schema
from gradwire.scenarios.units import Size
from gradwire.workload.traffic.incast import Incast


class Parcel(ScenarioTable):
    weight: Size
    count: Count = 1
    """How many
    there are."""


class Letter(Parcel):
    weight: Size
    """Of the paper."""


def test_description_comes_from_the_declaring_class():
    assert description(Parcel, "count") == description(Letter, "count") == "How many\nthere are."
    assert description(Letter, "weight") == "Of the paper."
    assert description(Incast, "start") == description(TrafficTable, "start")


def test_field_without_docstring_uses_type_description():
    assert description(Parcel, "weight") == Parcel.model_fields["weight"].description


def test_json_schema_contains_field_descriptions():
    schema = describe(Letter.model_json_schema(), Letter)
    assert schema["properties"]["weight"]["description"] == "Of the paper."
    assert schema["properties"]["count"]["description"] == "How many\nthere are."
    whole = json_schema()
    assert whole["$defs"]["Incast"]["properties"]["start"]["description"] == description(TrafficTable, "start")
    alike = [part["properties"] for name, part in whole["$defs"].items() if name in ("Hpcc", "HpccTopology")]
    assert len(alike) == 2, "a transport and a topology"
    said = {key: part[key].get("description") for part in alike for key in ("eta", "file") if key in part}
    assert said == {"eta": "Target utilisation.", "file": "Relative to the scenario file."}
    assert whole["$defs"]["Link"]["properties"]["latency"]["description"] == "Propagation delay of one cable."


def test_class_without_source_has_no_field_descriptions():
    space: dict = {"__name__": "nowhere"}
    exec(
        "from gradwire.scenarios.schema.base import ScenarioTable\nclass Odd(ScenarioTable):\n    field: int = 1\n    'Lost.'",
        space,
    )
    assert description(space["Odd"], "field") is None
