"""Declares options of TCP's loss detection and repair, with presets of a current kernel's and the simulator's classic
rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import model_validator

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.network.transport_base import LossBasedTcp
from gradwire.scenarios.units import Ps, format_time

TICK = Ps(1_000_000_000)
"""The kernel's timer tick: 1 ms [CONFIG_HZ = 1000], also the resolution of its timestamps."""
ATO = Ps(40_000_000_000)
"""Linux's initial delay of acknowledgements [include/net/tcp.h: TCP_ATO_MIN]."""
LONGEST_RTO = Ps(120_000_000_000_000)
"""Linux's largest time-out [include/net/tcp.h: TCP_RTO_MAX]."""
QUICK_ACKS = 16
"""Packets that Linux acknowledges at once before it delays acknowledgements [include/net/tcp.h: TCP_MAX_QUICKACKS]."""

CLASSIC: Mapping[str, Any] = {
    "loss_detection": "duplicates",
    "tail_probes": False,
    "frto": False,
    "slow_start": "standard",
    "pacing": False,
    "timers": "exact",
    "small_queues": False,
}
LINUX: Mapping[str, Any] = {
    **CLASSIC,
    "loss_detection": "rack",
    "tail_probes": True,
    "frto": True,
    "timers": "ticks",
    "small_queues": True,
}
RULES = tuple(CLASSIC)


class TcpRulesTable(LossBasedTcp):
    """Options of NewReno, CUBIC and DCTCP. With any non-classic rule the window is reduced proportionally (prr)."""

    preset: Literal["classic", "linux"] = "classic"
    """Defaults of the options below. classic: losses by duplicate acknowledgements and time-outs [RFC 6675, 6298].
    linux: as a current kernel, with rack, tail probes, proportional rate reduction (prr), F-RTO, HyStart where the
    kernel has it (CUBIC), its timers, its small queues, time-outs of up to 120 s unless max_rto is set, and
    acknowledgements delayed by 40 ms, or half of min_rto if that is less, except for the first sixteen packets and the
    last one."""
    loss_detection: Literal["duplicates", "rack"] | None = None
    """Loss detection: by three later packets that have arrived [RFC 6675], or by one that was sent later [RFC 8985]."""
    tail_probes: Flag | None = None
    """Retransmit the last packet after two round trips of silence, to avoid a time-out [RFC 8985]. With one packet in
    flight the probe also waits for a delayed acknowledgement, `min_rto`, as the kernel's does."""
    frto: Flag | None = None
    """Undo spurious time-outs [RFC 5682], and recoveries in which all retransmissions were unnecessary [RFC 2883]."""
    slow_start: Literal["standard", "hystart", "hystart++"] | None = None
    """Until the first loss [RFC 5681]; or until acknowledgements are delayed, as Linux's CUBIC, or as in RFC 9406."""
    pacing: Flag | None = None
    """Send packets evenly, at twice the window per round trip in slow start and 1.2 times later. Linux does so with the
    fq queueing discipline only."""
    timers: Literal["exact", "ticks"] | None = None
    """Time-outs to the picosecond by RFC 6298 (but min_rto, not 1 s, before the first round trip is measured), or as
    Linux: in ticks of 1 ms, never early, min_rto less a tick on top of the round trip, 2 ms more for RACK and tail
    probes, and a first round trip known from the handshake."""

    small_queues: Flag | None = None
    """Create packets as soon as the window allows and queue them at the host's NIC in that order: per connection what
    it sends in 1/1024 s at its pace, and at least two full packets, as Linux (TCP small queues). Otherwise they are
    created when they leave, and connections take turns."""

    @property
    def falls_in_proportion(self) -> bool:
        return uses_modern_rules(rules_of(self.model_dump()))

    @model_validator(mode="before")
    @classmethod
    def _longest(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and table.get("preset") == "linux":
            return {"max_rto": format_time(LONGEST_RTO), **table}
        return table

    def conflicts(self) -> Iterator[Mistake]:
        yield from super().conflicts()
        if rules_of(self.model_dump())["timers"] == "ticks" and self.min_rto < 2 * TICK:
            what = 'is less than two ticks of timers = "ticks"'
            expected = f'at least {format_time(2 * TICK)}, or timers = "exact"'
            yield Mistake("min_rto", what, format_time(self.min_rto), expected)


def rules_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effective rules of a table's settings, with the preset's defaults. They include the delay of
    acknowledgements, and the number of initial packets that are not delayed."""
    linux = settings.get("preset") == "linux"
    preset = dict(LINUX if linux else CLASSIC)
    if linux and settings.get("kind") == "cubic":
        preset["slow_start"] = "hystart"
    rules = {name: preset[name] if settings.get(name) is None else settings[name] for name in RULES}
    delay = settings.get("delayed_acks")
    if linux and delay is None:
        delay = min(ATO, int(settings["min_rto"]) // 2)
    return rules | {"delayed_acks": delay, "quick": QUICK_ACKS if linux else 0}


def uses_modern_rules(rules: Mapping[str, Any]) -> bool:
    """Return True if any rule differs from the classic ones, which needs the other sender."""
    return any(rules[name] != value for name, value in CLASSIC.items()) or rules["quick"] > 0


def with_kernel_rules(table: Any, turns: bool) -> Any:
    """Return the table of a kernel-TCP transport with the kernel's rules, unless it sets rules; others unchanged. If
    time-outs are shorter than the kernel's minimum, timers stay exact. `turns`: one packet per connection waits at the
    NIC, so that connections take turns."""
    if not isinstance(table, TcpRulesTable) or not table.congestion():
        return table
    changed: dict[str, Any] = {}
    if turns and table.small_queues is None:
        changed["small_queues"] = False
    if table.model_fields_set & {"preset", *RULES}:
        return table.model_copy(update=changed if table.preset == "linux" else {})
    changed["preset"] = "linux"
    if table.min_rto < 2 * TICK:
        changed["timers"] = "exact"
    if "max_rto" not in table.model_fields_set:
        changed["max_rto"] = LONGEST_RTO
    return table.model_copy(update=changed)
