"""Claims of DLCP about training jobs: S3 and S4."""

from __future__ import annotations

from gradwire.studies.reproduce.claim import Claim, Expect, Setting, gain, gain_growth
from gradwire.studies.reproduce.policies import DCTCP, PERSISTENT_DCTCP, PIAS, rto_min

SERVERS, RING = "parameter servers, 12 workers", "ring, 12 workers"
ALL = (
    "dlcp",
    *DCTCP,
    *PERSISTENT_DCTCP,
    *PIAS,
    "p3-2ms",
    "p3-10ms",
    "bytescheduler-2ms",
    "bytescheduler-10ms",
    "pfabric",
    "ndp",
    "swift",
)
RING_JOB = {"job": {"iterations": 3, "servers": 0, "exchange": {"kind": "ring", "bucket": "25MiB"}}}
S3 = Claim(
    "S3",
    "[abstract] 84.3 %; ring [notes]; limits [ours]",
    "Parameter servers gain much, a ring hardly anything, as it has one sender per receiver.",
    "up to 84.3 % faster with parameter servers, at most 11 % with a ring",
    (
        Setting(SERVERS, "demo-cpu", ALL, {"job": {"iterations": 3}}),
        Setting(RING, "demo-cpu", ("dlcp", *DCTCP, *PERSISTENT_DCTCP, "swift"), RING_JOB),
    ),
    (
        *(
            Expect(
                "DLCP faster than DCTCP",
                gain(SERVERS, "dlcp", f"dctcp-{rto}"),
                (SERVERS,),
                low=0.35,
                unit="share",
                condition=f"parameter servers, {rto_min(rto)}",
                blame=(SERVERS, f"dctcp-{rto}"),
            )
            for rto in ("2ms", "10ms")
        ),
        *(
            Expect(
                "DLCP faster than DCTCP",
                gain(RING, "dlcp", f"{key}-{rto}"),
                (RING,),
                high=high,
                unit="share",
                condition=f"ring, {words}{rto_min(rto)}",
            )
            for key, words, high in (("dctcp", "", 0.11), ("dctcp-kept", "connections kept, ", 0.05))
            for rto in ("2ms", "10ms")
        ),
        *(
            Expect(
                "DLCP faster than DCTCP with connections kept",
                gain(SERVERS, "dlcp", key),
                (SERVERS,),
                low=0.0,
                unit="share",
                condition=f"parameter servers, connections kept, {rto_min(key)}",
                blame=(SERVERS, key),
            )
            for key in PERSISTENT_DCTCP
        ),
        *(
            Expect(
                f"DLCP faster than {words}, layer order",
                gain(SERVERS, "dlcp", key),
                (SERVERS,),
                low=0.0,
                unit="share",
                condition=f"{words}, {rto_min(key)}",
                blame=(SERVERS, key),
            )
            for words, name in (("P3-like", "p3"), ("ByteScheduler-like", "bytescheduler"))
            for key in (f"{name}-2ms", f"{name}-10ms")
        ),
    ),
    "iteration",
    "In a ring every message has its own path and receiver: DCTCP's disadvantage against DLCP is the slow start of a "
    "fresh connection for each message, and disappears with persistent connections.",
)

WORKERS = {n: f"{n} workers, ResNet-50" for n in (8, 16, 32, 64)}
VGG = {n: f"{n} workers, VGG-16" for n in (16, 32, 64)}
VGG_JOB = {"trace": "vgg16", "name": "vgg16", "phase": "early", "compute_scale": 0.044}
S4 = Claim(
    "S4",
    "[notes] on DLCP's simulations; limits [ours]",
    "DLCP gains more if more workers push to the same servers.",
    "gains grow with the number of workers, 8 to 64",
    (
        *(
            Setting(
                name,
                "paper-144",
                ("dlcp", *DCTCP, *PERSISTENT_DCTCP),
                {"job": {"workers": n, "iterations": 3}},
                full_only=n == 16,
            )
            for n, name in WORKERS.items()
        ),
        *(
            Setting(
                name, "paper-144", ("dlcp", *DCTCP), {"job": {**VGG_JOB, "workers": n, "iterations": 3}}, full_only=True
            )
            for n, name in VGG.items()
        ),
    ),
    (
        *(
            Expect(
                f"DLCP faster than DCTCP at {n} workers",
                gain(WORKERS[n], "dlcp", f"dctcp-{rto}"),
                (WORKERS[n],),
                low=low,
                unit="share",
                condition=f"{n} workers, {rto_min(rto)}",
                blame=(WORKERS[n], f"dctcp-{rto}"),
            )
            for n, low in ((32, 0.35), (64, 0.55))
            for rto in ("2ms", "10ms")
        ),
        *(
            Expect(
                f"DLCP faster than DCTCP with connections kept at {n} workers",
                gain(WORKERS[n], "dlcp", "dctcp-kept-2ms"),
                (WORKERS[n],),
                low=0.0,
                unit="share",
                condition=f"{n} workers, connections kept, RTOmin 2 ms",
                blame=(WORKERS[n], "dctcp-kept-2ms"),
            )
            for n in (32, 64)
        ),
        *(
            Expect(
                f"gain at {b} workers less that at {a}",
                gain_growth(WORKERS[a], WORKERS[b], "dlcp", "dctcp-2ms"),
                (WORKERS[a], WORKERS[b]),
                low=0.0,
                unit="share",
                condition=f"growing from {a} to {b} workers, RTOmin 2 ms",
            )
            for a, b in ((8, 32), (32, 64))
        ),
        *(
            Expect(
                f"VGG-16: DLCP faster than DCTCP at {n} workers",
                gain(VGG[n], "dlcp", "dctcp-2ms"),
                (VGG[n],),
                low=0.35,
                unit="share",
                condition=f"VGG-16, {n} workers, RTOmin 2 ms",
                blame=(VGG[n], "dctcp-2ms"),
            )
            for n in (32, 64)
        ),
    ),
    "iteration",
    "One iteration of the steady state, with 80 ms of computing in each case; 4 servers. DCTCP opens a fresh "
    "connection for each message unless connections are persistent: R4 of `gradwire reproduce regimes` shows how much "
    "of the gain that is.",
)
