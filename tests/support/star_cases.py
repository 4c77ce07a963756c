"""Small scenarios that tests share. Each call returns fresh tables, so that a test may change them."""

from __future__ import annotations

from typing import Any

from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.scenario import Scenario


def star_tables(hosts: int = 4, **tables: Any) -> dict[str, Any]:
    """Up to three workers and one parameter server around one switch; `tables` replace any of it."""
    return {
        "name": "test",
        "topology": {"kind": "star", "hosts": hosts},
        "job": [
            {
                "name": "job",
                "trace": "resnet50",
                "workers": max(2, min(3, hosts - 1)),
                "servers": 1,
                "exchange": {"kind": "parameter_server"},
            }
        ],
        **tables,
    }


def star_scenario(hosts: int = 4, **tables: Any) -> Scenario:
    """`star_tables` as a validated scenario."""
    return build_scenario(star_tables(hosts, **tables))
