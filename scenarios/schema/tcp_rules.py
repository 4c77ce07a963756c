"""The rules by which TCP finds and repairs losses, as options: what a current kernel does, or what the simulator's
TCP did first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from gradwire.scenarios.schema.base import Flag, refuse
from gradwire.scenarios.schema.transport_base import Windowed
from gradwire.scenarios.units import Ps, format_time

TICK = Ps(1_000_000_000)
"""The kernel's: 1 ms [CONFIG_HZ = 1000], which is also that of its time stamps."""
ATO = Ps(40_000_000_000)
"""How long Linux puts off an acknowledgement at first [include/net/tcp.h: TCP_ATO_MIN]."""
LONGEST_RTO = Ps(120_000_000_000_000)
"""Its largest time-out [include/net/tcp.h: TCP_RTO_MAX]."""
QUICK = 16
"""Packets that it acknowledges at once before it does [include/net/tcp.h: TCP_MAX_QUICKACKS]."""

RULES = ("loss_detection", "tail_probes", "frto", "slow_start", "pacing", "timers", "small_queues")
CLASSIC: Mapping[str, Any] = {
    "loss_detection": "duplicates", "tail_probes": False, "frto": False, "slow_start": "standard", "pacing": False,
    "timers": "exact", "small_queues": False,
}  # fmt: skip
LINUX: Mapping[str, Any] = {
    "loss_detection": "rack", "tail_probes": True, "frto": True, "slow_start": "standard", "pacing": False,
    "timers": "ticks", "small_queues": True,
}  # fmt: skip


class Ruled(Windowed):
    """What NewReno, CUBIC and DCTCP have. With any of the rules that classic has not, the window falls in proportion
    (prr)."""

    preset: Literal["classic", "linux"] = "classic"
    """What the options below are unless given. classic: losses by duplicate acknowledgements, time-outs [RFC 6675,
    6298]. linux: as a current kernel, with rack, tail probes, the window in proportion (prr), F-RTO, HyStart where
    the kernel has it (CUBIC), its timers, its small queues, time-outs of up to 120 s unless max_rto is given, and
    acknowledgements put off by 40 ms, or half of min_rto if that is less, but for the first sixteen packets and the
    last one."""
    loss_detection: Literal["duplicates", "rack"] | None = None
    """What finds losses: three packets above that have arrived [RFC 6675], or one that was sent later [RFC 8985]."""
    tail_probes: Flag | None = None
    """Whether the last packet is sent again after two round trips of silence, so that no time-out is needed [RFC
    8985]."""
    frto: Flag | None = None
    """Whether a time-out that turns out to be spurious is taken back [RFC 5682], and a recovery in which all that was
    sent again was needless [RFC 2883]."""
    slow_start: Literal["standard", "hystart", "hystart++"] | None = None
    """Until the first loss [RFC 5681]; or until acknowledgements come late, as Linux's CUBIC, or as in RFC 9406."""
    pacing: Flag | None = None
    """Whether packets leave evenly, at twice the window per round trip in slow start and 1.2 times later. Linux does
    with the fq queueing discipline only."""
    timers: Literal["exact", "ticks"] | None = None
    """Time-outs to the picosecond by RFC 6298, or as Linux: by ticks of 1 ms, never early, min_rto less a tick on top
    of the round trip, 2 ms more for RACK and tail probes, and a first round trip known from the handshake."""

    small_queues: Flag | None = None
    """Whether packets are made as soon as the window allows and wait at the host's NIC, in the order in which they were
    made: of a connection what it sends in 1/1024 s at its pace and at least two full packets, as Linux (TCP small
    queues). Otherwise they are made when they leave, and connections take turns."""

    @property
    def falls_in_proportion(self) -> bool:
        return modern(rules_of(self.model_dump()))

    @model_validator(mode="before")
    @classmethod
    def _longest(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and table.get("preset") == "linux":
            return {"max_rto": format_time(LONGEST_RTO), **table}
        return table

    @model_validator(mode="after")
    def _fitting(self) -> Ruled:
        if rules_of(self.model_dump())["timers"] == "ticks" and self.min_rto < 2 * TICK:
            raise refuse(
                "min_rto", 'is less than two ticks of timers = "ticks"', format_time(self.min_rto),
                f'at least {format_time(2 * TICK)}, or timers = "exact"',
            )  # fmt: skip
        return self


def rules_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The rules that the settings of a table come to, its preset's where they are not given; with them
    how long acknowledgements may wait, and how many at first do not."""
    linux = settings.get("preset") == "linux"
    preset = dict(LINUX if linux else CLASSIC)
    if linux and settings.get("kind") == "cubic":
        preset["slow_start"] = "hystart"
    found = {name: preset[name] if settings.get(name) is None else settings[name] for name in RULES}
    delay = settings.get("delayed_acks")
    if linux and delay is None:
        delay = min(ATO, int(settings["min_rto"]) // 2)
    return found | {"delayed_acks": delay, "quick": QUICK if linux else 0}


def modern(rules: Mapping[str, Any]) -> bool:
    """Whether rules are others than the classic ones, so that the sender is another one."""
    return any(rules[name] != value for name, value in CLASSIC.items()) or rules["quick"] > 0


def as_kernel(table: Any, turns: bool) -> Any:
    """The table of a transport that the kernel's TCP carries on the testbed, as the kernel has it, unless it says
    itself by which rules; any other as it is. Where time-outs are shorter than the kernel can make them, timers stay
    exact. `turns`: one packet of a connection waits at the NIC there, so that connections take turns."""
    if not isinstance(table, Ruled) or not table.congestion():
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
