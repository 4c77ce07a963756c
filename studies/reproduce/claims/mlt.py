"""MLT's claims (NSDI '24), as far as they can be simulated: training speed, tails, and gray failures."""

from __future__ import annotations

from gradwire.studies.reproduce.claim import Claim, Expect, Setting, gain, saved
from gradwire.studies.reproduce.claims.bursts import burst
from gradwire.studies.reproduce.claims.mechanisms import expect_slower, expect_unchanged, gray_settings
from gradwire.studies.reproduce.policies import DCTCP, PERSISTENT_DCTCP, POLICIES, rto_min

JOB, BURST = "parameter servers, 12 workers", "fan-in 32, 256 kB"
RIVALS = (*DCTCP, *PERSISTENT_DCTCP, "p3-2ms", "p3-10ms", "bytescheduler-2ms", "bytescheduler-10ms", "ndp", "swift")

M1 = Claim(
    "M1",
    "[abstract] of MLT; 12.0 to 62.2 % [notes]",
    "Training with parameter servers is faster than with any baseline.",
    "12.0 to 62.2 % faster than the best baseline of its testbed (ours are simulated, and others)",
    (Setting(JOB, "demo-cpu", ("mlt", *RIVALS), {"job": {"iterations": 3}}),),
    tuple(
        Expect(
            f"MLT faster than {POLICIES[key].label}",
            gain(JOB, "mlt", key),
            (JOB,),
            low=0.12,
            unit="share",
            blame=(JOB, key),
        )
        for key in RIVALS
    ),
    "iteration",
)

M2 = Claim(
    "M2",
    "[notes] on MLT's simulations",
    "The tail of flow completion times is lower than with DCTCP and NDP.",
    "tail -91.8 % against DCTCP",
    (Setting(BURST, "incast-mix", ("mlt", *DCTCP, "pfabric", "ndp"), burst(32, "256kB", 10)),),
    (
        *(
            Expect(
                "p99 saved",
                saved(BURST, "mlt", f"dctcp-{rto}", "p99"),
                (BURST,),
                low=0.85,
                unit="share",
                condition=f"DCTCP, {rto_min(rto)}",
                blame=(BURST, f"dctcp-{rto}"),
            )
            for rto in ("10ms", "2ms")
        ),
        *(
            Expect(
                "p99 saved",
                saved(BURST, "mlt", key, "p99"),
                (BURST,),
                low=0.0,
                unit="share",
                condition=f"against {POLICIES[key].label}",
                blame=(BURST, key),
            )
            for key in ("pfabric", "ndp")
        ),
    ),
    "p99",
)

M3 = Claim(
    "M3",
    "[notes] on MLT's gray failures; limits [ours]",
    "Gray failures: 0.01 to 1 % random loss on one worker's link degrades reliable transports, MLT holds.",
    "reliable transports degrade at 0.1 to 1 %, MLT holds",
    gray_settings(("mlt", *DCTCP, "swift", "ndp")),
    (*expect_unchanged("mlt", "MLT"), *expect_slower((*DCTCP, "swift", "ndp"))),
    "iteration",
)

CLAIMS = [M1, M2, M3]
