"""NewReno, CUBIC and DCTCP with `linux_sender` and `linux_receiver` in the place of their own functions.

A table that asks for no such rule never gets here: its engine is the one that it has always been.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gradwire.components.transports import linux_queue, linux_receiver, linux_sender
from gradwire.components.transports.base import Context
from gradwire.components.transports.linux_queue import PACKET_MEMORY
from gradwire.components.transports.linux_words import (
    BITMAPS,
    CUBIC,
    DCTCP,
    HYSTART,
    HYSTART_PLUS,
    K_CONTROL,
    RENO,
    STANDARD,
)
from gradwire.components.transports.reliable import Reliable
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.tcp_rules import TICK, modern, rules_of

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import Json, JsonView
    from gradwire.scenarios.schema.transport_base import Transport

CONTROLS = {"tcp_newreno": RENO, "cubic": CUBIC, "dctcp": DCTCP}
SLOW_STARTS = {"standard": STANDARD, "hystart": HYSTART, "hystart++": HYSTART_PLUS}
TRAIN_BYTES = 4 * 65536
"""What HyStart allows for bursts [net/ipv4/tcp_cubic.c: `hystart_ack_delay`, four times the largest GSO packet]."""


@cache
def variant(owner: type[Transport], control: int) -> type[Transport]:
    """The class that carries out one of the three over the other sender."""
    alike = control == DCTCP
    functions: dict[str, Any] = {
        "sender_bitmaps": BITMAPS,
        "streams": True,
        "queues_at_nic": True,
        "at_nic": staticmethod(linux_queue.at_nic),
        "parameters": staticmethod(lambda settings, context: parameters(owner, control, settings, context)),
        "on_data": staticmethod(linux_receiver.on_data_alike if alike else linux_receiver.on_data),
    }
    for name in ("start", "pull", "on_control", "on_timer", "resume", "forget"):
        functions[name] = staticmethod(getattr(linux_sender, name))
    return type(f"Linux{owner.__name__}", (owner,), {"__module__": __name__, "__annotations__": {}, **functions})


def linux(owner: type[Transport], settings: JsonView) -> type[Transport]:
    """Whose functions carry out `owner` with these settings.

    Raises
    ------
    ScenarioError
        A class derived from one of the three, which has rules of its own, is to have these.
    """
    if not modern(rules_of(settings)):
        return owner
    if settings["kind"] not in CONTROLS:
        what = f"is for {', '.join(CONTROLS)}: {owner.__name__} has rules of its own"
        raise ScenarioError(what, "transport.preset", '"classic", and none of the other rules')
    return variant(owner, CONTROLS[settings["kind"]])


def parameters(owner: Any, control: int, settings: Json, context: Context) -> list[int]:
    """Those of the owner, then those of `linux_words`."""
    rules = rules_of(settings)
    ticks = rules["timers"] == "ticks"
    found = owner.parameters(settings, context)
    found[4] = rules["delayed_acks"] or 0
    if ticks:
        found[1] = settings["min_rto"] - TICK
        found[2] = max(settings["max_rto"], 2 * found[1])
    found += [0] * (K_CONTROL - len(found))
    frame = context.payload + Reliable.data_overhead
    return [
        *found,
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
        found[1] if ticks else rules["delayed_acks"] or 0,
        int(rules["quick"] > 0 and settings.get("connections") != "persistent"),
        PACKET_MEMORY - Reliable.data_overhead if rules["small_queues"] else 0,
        context.payload,
    ]
