"""Claims of DLCP about bursts to one host: S1, S2 and S5."""

from __future__ import annotations

from typing import Any

from gradwire.scenarios.json_data import Json
from gradwire.studies.reproduce.claim import Claim, Expect, Setting, ratio, saved
from gradwire.studies.reproduce.policies import BOUND, DCTCP, PIAS

LINE = 100_000_000_000
"""Rate of a host's link, bits per second."""


def burst(fan_in: int, size: str, rounds: int, period: str = "40ms", **more: object) -> Json:
    """Return changes to `incast-mix` for bursts of one kind only."""
    table = {"name": "burst", "kind": "incast", "fan_in": fan_in, "size": size, "period": period, "rounds": rounds}
    return {"traffic": [{**table, **more}]}


def fluid_ps(fan_in: int, size: int) -> float:
    """Return (1 - p) N S / C in picoseconds: the minimum time of a burst without wasted packets."""
    return (1 - BOUND) * fan_in * size * 8 / LINE * 1e12


def measure_of(setting: str, policy: str, measure: str, per: float = 1.0) -> Any:
    """Return a function for a measure, optionally divided by a number."""
    return lambda at: at(setting, policy, measure) / per


KB = 1000
S1_BURSTS = {8: 1000 * KB, 16: 512 * KB, 32: 256 * KB, 64: 64 * KB}
S1_ROUNDS = {8: 20, 16: 20, 32: 10, 64: 6}
S1_NAMES = {fan: f"fan-in {fan}, {size // KB} kB".replace("1000 kB", "1 MB") for fan, size in S1_BURSTS.items()}
LONG = {fan: f"fan-in {fan}, 1 MB" for fan in (16, 32, 64)}
"""Bursts long enough that volume, not the path, determines their time; that of 8 senders is already."""
FLUID = [
    *((S1_NAMES[fan], fan, size) for fan, size in S1_BURSTS.items()),
    *((name, fan, 1000 * KB) for fan, name in LONG.items()),
]

S1 = Claim(
    "S1",
    "[notes] on DLCP's simulations; limits and fluid bound [ours]",
    "Under incast to a parameter server, DLCP reduces the tail of completion times relative to DCTCP.",
    "p99 -91.8 %, mean -43.1 % against DCTCP; p99 -88.6 %, mean -35.5 % against pFabric",
    (
        *(
            Setting(
                S1_NAMES[fan],
                "incast-mix",
                ("dlcp", *DCTCP, *PIAS, "pfabric", "ndp", "swift"),
                burst(fan, f"{size // KB}kB", S1_ROUNDS[fan]),
            )
            for fan, size in S1_BURSTS.items()
        ),
        *(Setting(name, "incast-mix", ("dlcp", "ndp"), burst(fan, "1MB", 5)) for fan, name in LONG.items()),
    ),
    (
        *(
            Expect(
                "p99 of DLCP over DCTCP's",
                ratio(S1_NAMES[fan], "dlcp", f"dctcp-{rto}", "p99"),
                (S1_NAMES[fan],),
                high=0.15,
                condition=f"fan-in {fan}, RTOmin {words}",
                blame=(S1_NAMES[fan], f"dctcp-{rto}"),
            )
            for fan in (16, 32, 64)
            for rto, words in (("10ms", "10 ms"), ("2ms", "2 ms"))
        ),
        *(
            Expect(
                "p99 of DLCP over (1-p)NS/C",
                measure_of(name, "dlcp", "p99", fluid_ps(fan, size)),
                (name,),
                high=1.05,
                condition=f"fluid bound, {name}",
            )
            for name, fan, size in FLUID
        ),
    ),
    "p99",
    "Completion times are of single messages of 64 kB to 1 MB. Results against 10 ms hold against 2 ms only if DCTCP "
    "has time-outs at all. The fluid bound counts payload alone: headers add 1.6 %, and the path takes 10 us until the "
    "first byte of an acknowledgement is back, which is 3.4 % of the burst of 64 x 64 kB.",
)

S2_NAME = "fan-in 15 and 16, 512 kB"
S2_BURSTS = {
    "traffic": [
        {**burst(15, "512kB", 40)["traffic"][0], "name": "in15"},
        {**burst(16, "512kB", 40)["traffic"][0], "name": "in16", "start": "20ms"},
    ]
}
"""In smaller bursts hardly any message times out, in larger ones a few percent."""

S2 = Claim(
    "S2",
    "[notes] on DLCP's simulations",
    "The tail gains far more than the mean: DLCP saves the time-outs of a few flows.",
    "mean -43.1 %, tail -91.8 % against DCTCP, which fits about 1 % of flows in a 10 ms time-out [derived]",
    (Setting(S2_NAME, "incast-mix", ("dlcp", *DCTCP, "ndp"), S2_BURSTS),),
    (
        Expect(
            "share of DCTCP's messages with a time-out",
            measure_of(S2_NAME, "dctcp-10ms", "timed_out"),
            (S2_NAME,),
            low=0.001,
            high=0.05,
            unit="share",
        ),
        Expect(
            "p99 saved",
            saved(S2_NAME, "dlcp", "dctcp-10ms", "p99"),
            (S2_NAME,),
            low=0.8,
            unit="share",
            condition="p99, RTOmin 10 ms",
            blame=(S2_NAME, "dctcp-10ms"),
        ),
        Expect(
            "tail gain less mean gain",
            lambda at: (
                saved(S2_NAME, "dlcp", "dctcp-10ms", "p99")(at) - saved(S2_NAME, "dlcp", "dctcp-10ms", "mean")(at)
            ),
            (S2_NAME,),
            low=0.2,
            unit="share",
            condition="tail more than mean, RTOmin 10 ms",
        ),
        Expect(
            "mean saved",
            saved(S2_NAME, "dlcp", "dctcp-10ms", "mean"),
            (S2_NAME,),
            low=0.1,
            unit="share",
            condition="mean, RTOmin 10 ms",
        ),
        Expect(
            "p99 saved",
            saved(S2_NAME, "dlcp", "dctcp-2ms", "p99"),
            (S2_NAME,),
            low=0.5,
            unit="share",
            condition="p99, RTOmin 2 ms",
            blame=(S2_NAME, "dctcp-2ms"),
        ),
    ),
    "p99",
    "Few of many messages time out: which ones determines the p99, and it varies between seeds.",
)

LARGE, SMALL = "fan-in 32, 1 MB", "fan-in 32, 64 kB"
S5 = Claim(
    "S5",
    "[notes] on DLCP's motivation",
    "Sending 16 times less does not change DCTCP's tail, which is due to time-outs and not volume; DLCP's tail falls.",
    "16x compression leaves the tail at about 10 ms",
    (
        Setting(LARGE, "incast-mix", ("dlcp", *DCTCP), burst(32, "1MB", 6)),
        Setting(SMALL, "incast-mix", ("dlcp", *DCTCP), burst(32, "64kB", 6)),
    ),
    (
        Expect(
            "p99 of DCTCP with sizes / 16, over that with full sizes",
            lambda at: at(SMALL, "dctcp-10ms", "p99") / at(LARGE, "dctcp-10ms", "p99"),
            (LARGE, SMALL),
            low=0.5,
            condition="DCTCP stays, RTOmin 10 ms",
            blame=(SMALL, "dctcp-10ms"),
        ),
        Expect(
            "p99 of DCTCP with sizes / 16, over that with full sizes",
            lambda at: at(SMALL, "dctcp-2ms", "p99") / at(LARGE, "dctcp-2ms", "p99"),
            (LARGE, SMALL),
            low=0.5,
            condition="DCTCP stays, RTOmin 2 ms",
            blame=(SMALL, "dctcp-2ms"),
        ),
        Expect(
            "p99 of DLCP saved by sizes / 16",
            lambda at: 1 - at(SMALL, "dlcp", "p99") / at(LARGE, "dlcp", "p99"),
            (LARGE, SMALL),
            low=0.9,
            unit="share",
            condition="DLCP falls",
        ),
        Expect(
            "p99 of DLCP over DCTCP's, sizes / 16",
            ratio(SMALL, "dlcp", "dctcp-10ms", "p99"),
            (SMALL,),
            high=0.05,
            condition="sizes / 16, RTOmin 10 ms",
            blame=(SMALL, "dctcp-10ms"),
        ),
        Expect(
            "p99 of DLCP over DCTCP's, sizes / 16",
            ratio(SMALL, "dlcp", "dctcp-2ms", "p99"),
            (SMALL,),
            high=0.15,
            condition="sizes / 16, RTOmin 2 ms",
            blame=(SMALL, "dctcp-2ms"),
        ),
    ),
    "p99",
)
