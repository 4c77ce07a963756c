"""Builds the variants of NewReno, CUBIC and DCTCP that run on the Linux sender and receiver, and their parameters.

A table without such rules keeps the transport's own class, and so its unchanged engine.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gradwire.protocols.transports.base import Context
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.linux_tcp import receiver, sender, small_queues
from gradwire.protocols.transports.linux_tcp.layout import (
    BITMAPS,
    CUBIC,
    DCTCP,
    HYSTART,
    HYSTART_PLUS,
    RENO,
    STANDARD,
    LinuxParameters,
)
from gradwire.protocols.transports.linux_tcp.small_queues import PACKET_MEMORY
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.network.tcp_rules import TICK, rules_of, uses_modern_rules

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import Json, JsonView
    from gradwire.scenarios.schema.network.transport_base import Transport

CONTROLS = {"tcp_newreno": RENO, "cubic": CUBIC, "dctcp": DCTCP}
SLOW_STARTS = {"standard": STANDARD, "hystart": HYSTART, "hystart++": HYSTART_PLUS}
BY_TICKS = 'timers go by ticks of a clock (timers = "ticks")'
TRAIN_BYTES = 4 * 65536
"""HyStart's allowance for bursts [net/ipv4/tcp_cubic.c: `hystart_ack_delay`, four times the largest GSO packet]."""


@cache
def linux_variant(owner: type[Transport], control: int) -> type[Transport]:
    """Return the class that carries out one of the three transports over the Linux sender."""
    alike = control == DCTCP
    functions: dict[str, Any] = {
        "sender_bitmaps": BITMAPS,
        "streams": True,
        "queues_at_nic": True,
        "at_nic": staticmethod(small_queues.at_nic),
        "further_dependence": staticmethod(
            lambda settings: BY_TICKS if rules_of(settings)["timers"] == "ticks" else ""
        ),
        "parameters": staticmethod(lambda settings, context: parameters(owner, control, settings, context)),
        "on_data": staticmethod(receiver.on_data_alike if alike else receiver.on_data),
    }
    for name in ("start", "pull", "on_control", "on_timer", "resume", "forget"):
        functions[name] = staticmethod(getattr(sender, name))
    return type(f"Linux{owner.__name__}", (owner,), {"__module__": __name__, "__annotations__": {}, **functions})


def linux_class(owner: type[Transport], settings: JsonView) -> type[Transport]:
    """Return the class whose functions carry out `owner` with these settings.

    Raises
    ------
    ScenarioError
        If a derived class with rules of its own is to use the Linux rules.
    """
    if not uses_modern_rules(rules_of(settings)):
        return owner
    if settings["kind"] not in CONTROLS:
        what = f"is for {', '.join(CONTROLS)}: {owner.__name__} has rules of its own"
        raise ScenarioError(what, "transport.preset", '"classic", and none of the other rules')
    return linux_variant(owner, CONTROLS[settings["kind"]])


def parameters(owner: Any, control: int, settings: Json, context: Context) -> list[int]:
    """Return the parameters of the owner, then the rest of `LinuxParameters`."""
    rules = rules_of(settings)
    ticks = rules["timers"] == "ticks"
    values = owner.parameters(settings, context)
    values[4] = rules["delayed_acks"] or 0
    if ticks:
        values[1] = settings["min_rto"] - TICK
        values[2] = max(settings["max_rto"], 2 * values[1])
    values += [0] * (LinuxParameters.control.offset - len(values))
    frame = context.payload + Reliable.data_overhead
    return [
        *values,
        control,
        int(rules["loss_detection"] == "rack"),
        int(rules["tail_probes"]),
        int(rules["frto"]),
        SLOW_STARTS[rules["slow_start"]],
        TICK if ticks else 0,
        2 * TICK if ticks else 0,
        frame if rules["pacing"] else 0,
        rules["quick"],
        TRAIN_BYTES // context.payload,
        context.base_rtt if ticks else 0,
        values[1] if ticks else rules["delayed_acks"] or 0,
        int(rules["quick"] > 0 and settings.get("connections") != "persistent"),
        PACKET_MEMORY - Reliable.data_overhead if rules["small_queues"] else 0,
        context.payload,
    ]
