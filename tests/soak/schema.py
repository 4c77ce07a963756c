"""Values for the fields of a scenario, drawn from its JSON Schema, so that a new field is tried as soon as it exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from gradwire.scenarios.schema.scenario import json_schema

ABSENT = object()

RATES = ("1Gbps", "10Gbps", "25Gbps", "40000000007bps", "100Gbps", "400Gbps")
TIMES = ("1us", "20us", "50us", "200us", "1ms", "2ms")
SIZES = ("3000B", "9100B", "20kB", "60kB", "256KiB", "1MiB")
LATENCIES = ("0us", "1ps", "5ns", "333333ps", "1us", "20us")

TAME: Mapping[str, Sequence[Any]] = {
    "latency": LATENCIES, "uplink_latency": LATENCIES, "core_latency": LATENCIES, "local_latency": LATENCIES,
    "global_latency": LATENCIES, "switch_latency": LATENCIES, "bottleneck_latency": LATENCIES,
    "loss": (0.0, 0.001, 0.02, 0.3),
    "payload": ("64B", "1000B", "1460B", "4KiB", "8960B"),
    "size": ("1B", "100B", "5kB", "20kB", "100kB"), "sizes": ("100B", "5kB", "20kB", "sizes.txt"),
    "buffer": ("10kB", "25kB", "60kB", "512KiB"), "shared_buffer": ("30kB", "100kB", "1MiB"), "buffer_share": (0.34, 0.5, 1.0),
    "ecn_threshold": ("60B", "3kB", "9100B"), "ecn_ceiling": ("10kB", "20kB"), "drr_quantum": ("64B", "1500B", "9kB"),
    "aggregation_slots": (1, 3, 100), "trim_threshold": ("9100B", "20kB"), "trim_size": ("60B", "64B"), "pfc_threshold": ("9100B", "30kB"),
    "pfc_hysteresis": ("1B", "3kB", "9kB"), "pfc_headroom": ("60B", "10kB", "100kB"),
    "control_priority": (0, 0, 1, 7), "priority": (0, 1, 7), "trim_priority": (0, 1), "queues": (1, 2, 3, 8),
    "priorities": ([1, 2, 3], [0], [2, 1], [7]), "pfc_classes": ([0], [1, 2], [0, 7]), "drr_after": (0, 1, 2),
    "min_rto": ("20us", "200us", "2ms"), "max_rto": ("20ms",), "rto": ("200us", "2ms"), "probe_timeout": ("20us", "200us"),
    "min_timeout": ("20us", "200us"), "repeat_after": ("100us", "1ms"), "t_low": ("1us", "50us"), "t_high": ("60us", "500us"),
    "initial_window": (1, 2, 10, 50), "window": (1, 5, 50), "floor": (1, 4, 64), "patience": (1, 5), "max_window": (1, 10),
    "thresholds": (["3kB", "10kB"], ["20kB"], "1kB"),
    "start": ("0us", "0us", "1us", "77us"), "stop": ("100us", "1ms"), "period": ("1us", "77us"), "rounds": (1, 2, 3),
    "duration": ("50us", "2ms"), "software_latency": ("500ns", "2us", "10us"), "queue_samples": ("1us", "7us", "100us"),
    "at": ("0us", "3us", "50us"), "until": ("20us", "100us", "3ms"), "noticed_after": ("0us", "10us", "1ms"),
    "iterations": (1, 2), "workers": (1, 2, 3), "servers": (0, 1, 2), "partition": ("1000B", "4kB", "100kB"),
    "bucket": ("100B", "4kB", "100kB"), "fan_in": (1, 2, 3), "flows": (1, 5, 20), "load": (0.1, 0.9, 1.0), "shift": (1, 2, 5),
    "compute_scale": (0.0, 0.01, 1.0), "jitter": (0.0, 0.3), "flowlet_gap": ("1us", "50us"), "share": (0.01, 0.5, 1.0),
    "hosts": (2, 3, 5, 6), "left": (1, 2, 3), "right": (1, 2), "leaves": (1, 2, 3), "hosts_per_leaf": (2, 3), "spines": (1, 2),
    "cards": (1, 2), "hosts_per_group": (2, 3), "k": (2, 4), "p": (1, 2), "a": (1, 2, 3), "h": (1, 2), "groups": (2, 3),
    "dims": ([2, 2], [3, 2], [2, 2, 2]), "hosts_per_switch": (1, 2), "oversubscription": (1.0, 3.0), "tiers": (2, 3),
    "phase": ("early", "late"), "name": ("a", "b-1", "x.y"), "factor": (1.5, 10.0), "seed": (0, 1, 7, 2**40),
    "rate": RATES, "ports": ("*->h*", "*->*", "*0->*", "s*->h1*"),
}  # fmt: skip
"""By name of the field: values of small scenarios that mostly fit each other."""

ODD: Sequence[Any] = (
    0, 1, -1, 2, 7, 8, 255, 2**31, 2**63, 10**20, 0.0, -0.0, 0.5, 1.0, 1e-12, 1e308, True, False, "", "0", "h0", "s0", "all",
    "dlcp", "a/b", "\u0663", "none", [], {}, ["h0"], [0], {"kind": "ring"}, "1ps", "1us", "10s", "1B", "1TiB", "1bps", "8000Tbps",
)  # fmt: skip
"""What people write by mistake, and the ends of ranges."""

ODD_UNITS = {
    "time": ("0s", "1ps", "1ns", "1s", "100s", "9000s", "-1us", "0.5ps"),
    "rate": ("1bps", "1kbps", "2kbps", "1Mbps", "800Gbps", "10Tbps", "8000Tbps", "0bps"),
    "size": ("0B", "1B", "3B", "4B", "60B", "1GiB", "100000GB", "0.5B"),
}


def quantity(example: str) -> str:
    """The kind of a quantity, by the unit of its example."""
    if example.endswith("bps"):
        return "rate"
    return "time" if example.endswith("s") else "size"


class Drawer:
    """Draws tables that fit the JSON Schema; `odd` is the share of values that come from its edges or beyond."""

    def __init__(self, rng: Random, odd: float = 0.0, filled: float = 0.3) -> None:
        self.rng, self.odd, self.filled = rng, odd, filled
        self.defs = SCHEMA["$defs"]

    def table(self, name: str, pins: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A table of the model `name`; pinned fields are taken as they are, or left out if ABSENT."""
        schema = SCHEMA if name == "Scenario" else self.defs[name]
        pins = pins or {}
        found: dict[str, Any] = {}
        for field, what in schema["properties"].items():
            if field in pins:
                if pins[field] is not ABSENT:
                    found[field] = pins[field]
            elif field in schema.get("required", ()) or self.rng.random() < self.filled:
                found[field] = self.value(field, what)
        if self.rng.random() < self.odd / 20:
            found["unheard_of"] = 1
        return found

    def value(self, field: str, schema: Mapping[str, Any]) -> Any:
        """A value for one field."""
        if self.rng.random() < self.odd:
            return self._odd(schema)
        if field in TAME and "const" not in schema:
            return self.rng.choice(TAME[field])
        return self._plain(field, schema)

    def _plain(self, field: str, schema: Mapping[str, Any]) -> Any:
        rng = self.rng
        if "$ref" in schema:
            return self.table(schema["$ref"].rsplit("/", 1)[1])
        for several in ("oneOf", "anyOf"):
            if several in schema:
                options = [option for option in schema[several] if option.get("type") != "null"]
                return self.value(field, rng.choice(options))
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "integer":
            least = schema.get("minimum", 0)
            return rng.randint(least, min(least + 8, schema.get("maximum", least + 8)))
        if kind == "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            most = min(schema.get("maximum", schema.get("exclusiveMaximum", least + 2)), least + 100)
            return round(least + (most - least) * rng.choice((0.001, 0.1, 0.5, 0.9, 0.999)), 6)
        if kind == "array":
            count = rng.randint(schema.get("minItems", 0), min(schema.get("maxItems", 3), 3))
            return [self.value(field, schema.get("items", {})) for _ in range(count)]
        if kind == "object":
            return {}
        example = (schema.get("examples") or [""])[0]
        if isinstance(example, str) and example[:1].isdigit():
            return rng.choice({"rate": RATES, "time": TIMES, "size": SIZES}[quantity(example)])
        return rng.choice(schema.get("examples") or ["x"])

    def _odd(self, schema: Mapping[str, Any]) -> Any:
        rng = self.rng
        bounds = [
            schema[key] for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in schema
        ]
        if bounds and rng.random() < 0.5:
            return rng.choice(bounds) + rng.choice((-1, 0, 1))
        example = (schema.get("examples") or [""])[0]
        if isinstance(example, str) and example[:1].isdigit() and rng.random() < 0.7:
            return rng.choice(ODD_UNITS[quantity(example)])
        return rng.choice(ODD)


SCHEMA = json_schema()
