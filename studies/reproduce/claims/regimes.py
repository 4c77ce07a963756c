"""Regimes in which bounded loss pays or not, after the map of FORGIVE's report (2026) [notes].

Bounded loss can save at most p of the volume, and a recovery: a round trip, or a time-out. So it should pay where
baselines have time-outs, but not where switches trim and senders repair selectively, nor where an iteration does not
wait for the network.
"""

from __future__ import annotations

from gradwire.scenarios.json_data import Json
from gradwire.studies.reproduce.claim import Claim, Expect, Setting, gain, gain_growth, saved
from gradwire.studies.reproduce.claims.bursts import burst
from gradwire.studies.reproduce.claims.training_jobs import S4, WORKERS
from gradwire.studies.reproduce.policies import DCTCP, POLICIES, rto_min

SHALLOW, DEEP = "fan-in 32, buffers of 512 KiB", "fan-in 32, buffers of 16 MiB"
R1 = Claim(
    "R1",
    "[ours], after FORGIVE [notes]",
    "Bounded loss pays where baselines have time-outs; with buffers deep enough to avoid them, it saves only its own "
    "volume.",
    "the incast tail is one of time-outs",
    (
        Setting(SHALLOW, "incast-mix", ("dlcp", *DCTCP), burst(32, "256kB", 6)),
        Setting(DEEP, "incast-mix", ("dlcp", *DCTCP), {**burst(32, "256kB", 6), "switch": {"buffer": "16MiB"}}),
    ),
    (
        *(
            Expect(
                "p99 saved",
                saved(SHALLOW, "dlcp", f"dctcp-{rto}", "p99"),
                (SHALLOW,),
                low=0.3,
                unit="share",
                condition=f"time-outs, {rto_min(rto)}",
                blame=(SHALLOW, f"dctcp-{rto}"),
            )
            for rto in ("2ms", "10ms")
        ),
        *(
            Expect(
                "p99 saved",
                saved(DEEP, "dlcp", f"dctcp-{rto}", "p99"),
                (DEEP,),
                high=0.15,
                unit="share",
                condition=f"no time-outs, {rto_min(rto)}",
            )
            for rto in ("2ms", "10ms")
        ),
    ),
    "p99",
)

TRIM, TRIM_JOB = "fan-in 32, 256 kB", "parameter servers, 12 workers"
R2 = Claim(
    "R2",
    "[ours], after FORGIVE [notes]",
    "On fabrics that trim, where senders repair losses at once, bounded loss saves no more than its volume.",
    "at 64 ranks and 400G the tail that MLT cuts is below 1 % of training time",
    (
        Setting(TRIM, "incast-mix", ("dlcp", "ndp", "nscc", *DCTCP), burst(32, "256kB", 6)),
        Setting(TRIM_JOB, "demo-cpu", ("dlcp", "ndp", "nscc", *DCTCP), {"job": {"iterations": 3}}, shown="iteration"),
    ),
    (
        *(
            Expect(
                f"p99 saved against {POLICIES[key].label}",
                saved(TRIM, "dlcp", key, "p99"),
                (TRIM,),
                high=0.15,
                unit="share",
                condition=f"incast against {POLICIES[key].label}",
            )
            for key in ("ndp", "nscc")
        ),
        *(
            Expect(
                f"DLCP faster than {POLICIES[key].label}",
                gain(TRIM_JOB, "dlcp", key),
                (TRIM_JOB,),
                high=0.15,
                unit="share",
                condition=f"job against {POLICIES[key].label}, which has no layer order",
            )
            for key in ("ndp", "nscc")
        ),
    ),
    "p99",
    "NDP's and NSCC's jobs have neither layer order nor priority: the figure includes DLCP's gain from these.",
)

SPEEDS = {rate: f"hosts of {rate}" for rate in ("100Gbps", "400Gbps")}


def _fast(rate: str) -> Json:
    """Return changes that scale links, uplinks, K and buffers with the rate."""
    times = int(rate[:3]) // 100
    return {
        "link": {"rate": rate},
        "switch": {"buffer": f"{512 * times}KiB", "ecn_threshold": f"{96 * times}KiB"},
        "job": {"iterations": 3},
    }


R3 = Claim(
    "R3",
    "[ours], after FORGIVE [notes]",
    "At 400G an iteration of this job does not wait for the network, and bounded loss gains little.",
    "64 ranks at 400G: the incast tail is below 1 % of training time",
    tuple(Setting(name, "demo-cpu", ("dlcp", *DCTCP, "ndp"), _fast(rate)) for rate, name in SPEEDS.items()),
    (
        *(
            Expect(
                "DLCP faster than DCTCP",
                gain(SPEEDS["400Gbps"], "dlcp", f"dctcp-{rto}"),
                (SPEEDS["400Gbps"],),
                high=0.1,
                unit="share",
                condition=f"little at 400G, {rto_min(rto)}",
                blame=(SPEEDS["400Gbps"], f"dctcp-{rto}"),
            )
            for rto in ("2ms", "10ms")
        ),
        *(
            Expect(
                "gain at 100G less that at 400G",
                gain_growth(SPEEDS["400Gbps"], SPEEDS["100Gbps"], "dlcp", f"dctcp-{rto}"),
                tuple(SPEEDS.values()),
                low=0.0,
                unit="share",
                condition=f"more at 100G, {rto_min(rto)}",
            )
            for rto in ("2ms", "10ms")
        ),
    ),
    "iteration",
    "The same job, with links, buffers and K four times as large and the same computing time.",
)

R4 = Claim(
    "R4",
    "[ours]",
    "Most of DLCP's gain over DCTCP in a job of many workers is a gain over fresh connections for each message.",
    "the papers do not say whether their baselines keep connections",
    tuple(setting for setting in S4.settings if setting.name in (WORKERS[32], WORKERS[64])),
    tuple(
        Expect(
            f"gain over DCTCP with {words}, {n} workers",
            gain(WORKERS[n], "dlcp", key),
            (WORKERS[n],),
            low=low,
            high=high,
            unit="share",
            condition=f"{words}, {n} workers",
            blame=(WORKERS[n], key),
        )
        for n, most in ((32, 0.2), (64, 0.1))
        for key, words, low, high in (
            ("dctcp-2ms", "fresh connections", 0.35, None),
            ("dctcp-kept-2ms", "connections kept", 0.0, most),
        )
    ),
    "iteration",
    "Messages of 1 MiB to a server whose fair share of the link is a few packets per round trip: a fresh connection "
    "starts with ten packets at once, a persistent one knows its share.",
)

CLAIMS = [R1, R2, R3, R4]
