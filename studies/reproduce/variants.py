"""Arms of training runs: modifications of the gradients, compared with a run without them.

Like `policies` for networks, each overlays a scenario with a table [training]. Arms with a `number` lie on an axis:
shares lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import exact_percent_text
from gradwire.scenarios.schema.policy import overlay
from gradwire.studies.reproduce.policies import POLICIES, TAGS, PolicyOverlay


@dataclass(frozen=True)
class TrainingVariant(PolicyOverlay):
    """A policy of a training run. `number` : its position on an axis, if any."""

    number: float | None = None


def _lost(label: str, share: float, number: float | None = None, **more: object) -> TrainingVariant:
    return TrainingVariant(label, {"training": {"network": {"loss": share, **more}}}, number=number)


SHARES = (0.01, 0.03, 0.05, 0.1, 0.2, 0.3)
"""Shares of packets lost in the papers' figures [notes]."""
TAIL = 0.2
"""Share at which kinds of loss are compared."""

EVEN = 0.05
"""Share of all packets of a ring that is lost."""
WORKERS = 8
LOSS_PLACES: dict[str, tuple[str, Json]] = {
    "even": ("everywhere", {"loss": EVEN, "way": "both"}),
    "scatter": ("reduce-scatter only", {"loss": 2 * EVEN, "way": "push"}),
    "gather": ("all-gather only", {"loss": 2 * EVEN, "way": "pull"}),
    "one": ("behind one worker only", {"loss": WORKERS * EVEN, "way": "both", "worker": 0}),
}
"""Places of the same number of lost packets in a ring of eight."""
FILLS: dict[str, tuple[str, Json]] = {
    "zero": ("zero", {"fill": "zero", "pull_fill": "zero"}),
    "rescaled": ("rescaled", {"fill": "rescaled", "pull_fill": "stale"}),
    "stale": ("stale", {"fill": "stale", "pull_fill": "stale"}),
}
"""Replacements of lost values. Losses in the all-gather cannot be rescaled: the last step's mean is kept."""


def _rings() -> dict[str, TrainingVariant]:
    """Return losses in a ring, by place and replacement, and with periodic resynchronisation of workers."""
    arms = {}
    for where, (place, network) in LOSS_PLACES.items():
        for fill, (words, job) in FILLS.items():
            job = {**job, "exchange": {"kind": "ring"}, "servers": 0}
            arms[f"{where}-{fill}"] = TrainingVariant(f"{place}, {words}", {"training": {"network": network}}, job)
    together = {"training": {"network": LOSS_PLACES["gather"][1], "resync": 20}}
    arms["gather-resync"] = TrainingVariant(
        "all-gather only, stale, together every 20 steps", together, arms["gather-stale"].job
    )
    return arms


def _reduced(label: str, feedback: bool = False, momentum: float = 0.9, **reducer: object) -> TrainingVariant:
    training = {"reducer": {"ratio": 0.01, **reducer}, "error_feedback": feedback, "optimizer": {"momentum": momentum}}
    return TrainingVariant(label, {"training": training})


COMPUTING = "5ms"
"""A worker's computing time per step: about that of 16 small pictures on one thread here [ours]."""


def _system(label: str, kind: str, momentum: float = 0.9, rate: float = 0.2, **more: object) -> TrainingVariant:
    return TrainingVariant(
        label, {"training": {"system": {"kind": kind, **more}, "optimizer": {"momentum": momentum, "rate": rate}}}
    )


SIMULATED: Json = {"training": {"network": "simulated"}}


SPREAD: Json = {"training": {"spread": True}}


def _spread(label: str, policy: str) -> TrainingVariant:
    """Return a policy whose losses are spread evenly in each step."""
    base = POLICIES[policy]
    return TrainingVariant(label, {**base.set, **SPREAD}, base.job)


def _small(policy: str, changes: Json | None = None, label: str = "", **job: object) -> TrainingVariant:
    """Return a policy with packets of 512 bytes: 5 % of ten packets is less than one, except a short last one."""
    base = POLICIES[policy]
    small = overlay(overlay(dict(base.set), {"transport": {"payload": "512B"}}), changes or {})
    return TrainingVariant(label or f"{base.label}, packets of 512 B", small, {**base.job, **job})


def _over_a_ring() -> dict[str, TrainingVariant]:
    """Return DLCP in a ring with losses on all hops: as in the fabric, and spread evenly."""
    ring: Json = {
        "push_bound": EVEN,
        "pull_bound": EVEN,
        "pull_important": False,
        "servers": 0,
        "exchange": {"kind": "ring"},
    }
    return {
        "ring-fabric": _small("dlcp", {}, "ring, DLCP with bounds of 5 %", **ring),
        "ring-spread": _small("dlcp", SPREAD, "ring, as many bytes spread evenly", **ring),
    }


RECORD_LOSSES: Json = {"training": {"keep_missing": True}}
"""Setting for measures of which packets are lost."""
ORDERS = {"rotating": "important_first", "sequential": "sequential", "random": "random"}
DEEP: Json = {"switch": {"selective_drop": False, "buffer": "4MiB"}}
"""Switches that buffer a step of all workers and drop nothing."""
ONE_PATH: Json = {**DEEP, "load_balancing": "ecmp"}
"""One path for all packets of a pair of hosts, so that they arrive in order."""


def _eager() -> dict[str, TrainingVariant]:
    """Return arms of eager Stop, by the order in which packets are sent. If every packet is droppable, only the order
    and the switches' drops determine which are missing when a message may end; with tags by magnitude, the order
    determines it among the small ones."""
    any_packet: Json = {"tagging": {"layer_priority": True, "magnitude": True, "important_fraction": 0.0}}
    kinds: tuple[tuple[str, str, Json, Json], ...] = (
        ("", "", {}, any_packet),
        ("-deep", ", no drops", DEEP, any_packet),
        ("-tags", ", tags", {}, {}),
        ("-deep-fifth", ", no drops, 20 %", DEEP, {**any_packet, "push_bound": TAIL}),
        ("-path-fifth", ", no drops, 20 %, one path", ONE_PATH, {**any_packet, "push_bound": TAIL}),
    )
    arms = {}
    for end, words, changes, job in kinds:
        for order, key in ORDERS.items():
            if order == "random" and end:
                continue
            eager = overlay(overlay(RECORD_LOSSES, changes), {"transport": {"stop_policy": "eager", "send_order": key}})
            arms[f"eager-{order}{end}"] = _small("dlcp", eager, f"eager, {order}{words}", **job)
    return arms


LEFT = 0.2
"""Bound that forgives all but the worst of the switches' drops."""


def _left_to_switches() -> dict[str, TrainingVariant]:
    """Return arms of DLCP that send everything and forgo what was dropped, so that the fabric chooses the losses. The
    ring's workers are spread over the racks, so that all hops pass the spines; within a rack hardly any packet is
    dropped. Random tags make as many packets droppable, whatever their magnitudes."""
    probed = overlay(RECORD_LOSSES, {"transport": {"stop_policy": "on_probe"}})
    spread = overlay(probed, SPREAD)
    ring: Json = {"servers": 0, "exchange": {"kind": "ring"}, "placement": "spread"}
    push: Json = {"push_bound": LEFT, "pull_bound": 0.0}
    pull: Json = {"push_bound": 0.0, "pull_bound": LEFT, "pull_important": False}
    both: Json = {**pull, "push_bound": LEFT, **ring}
    drawn: Json = {"tagging": {**TAGS, "random": True}}
    arms = {
        "ring-lossless": _small("dctcp-2ms", {}, "ring, nothing lost", **ring),
        "ring-switches-scatter": _small("dlcp", probed, "ring, in reduce-scatter only", **push, **ring),
        "ring-switches-gather": _small("dlcp", probed, "ring, in all-gather only", **pull, **ring),
    }
    for key, words, job in (("switches", "", push), ("ring-switches", "ring, ", both)):
        for end, more, tags in (("", "", {}), ("-drawn", ", tags drawn", drawn)):
            arms[f"{key}{end}"] = _small("dlcp", probed, f"{words}loss left to switches{more}", **job, **tags)
            even = f"{words}as many bytes spread evenly{more}"
            arms[f"{key}{end}-spread"] = _small("dlcp", spread, even, **job, **tags)
    return arms


ASYNCHRONOUS = (("asynchronous", "asynchronous"), ("mipd", "MIPD"))
"""Asynchronous systems, and their labels."""


def _one_by_one() -> dict[str, TrainingVariant]:
    """Return the asynchronous systems over a fabric, with both transports; DLCP with and without layer priority."""
    flat: Json = {"tagging": {**TAGS, "layer_priority": False}}
    kinds: tuple[tuple[str, str, str, Json], ...] = (
        ("dctcp", "dctcp-2ms", "DCTCP", {}),
        ("dlcp", "dlcp", "DLCP", {}),
        ("flat", "dlcp", "DLCP without layer priority", flat),
    )
    return {
        f"{kind}-{key}": _small(policy, {"training": {"system": {"kind": kind}}}, f"{words}, {transport}", **job)
        for kind, words in ASYNCHRONOUS
        for key, policy, transport, job in kinds
    }


SYSTEMS: dict[str, TrainingVariant] = {
    "dense": TrainingVariant("dense", {}),
    "qsgd": TrainingVariant("QSGD, 8 bits", {"training": {"reducer": {"kind": "qsgd"}}}),
    "terngrad": TrainingVariant("TernGrad", {"training": {"reducer": {"kind": "terngrad"}}}),
    "powersgd": TrainingVariant(
        "PowerSGD, rank 2, error feedback",
        {"training": {"reducer": {"kind": "powersgd", "rank": 2}, "error_feedback": True}},
    ),
    "wnn": _system("weight nowcasting, every 65 steps", "wnn", period=13),
    "mp2": _system("MP2", "mp2"),
    "mp2-both": _system("MP2, workers predict too", "mp2", pull="pushed"),
    "mp2-none": _system("MP2 without prediction", "mp2", predictor="none"),
    "slimdp": _system("Slim-DP, 30 %, half of it core", "slimdp"),
    "slimdp-core": _system("Slim-DP, 30 %, core only", "slimdp", alpha=0.3, beta=0.3),
    "slimdp-explorer": _system("Slim-DP, 30 %, explorer only", "slimdp", alpha=0.3, beta=0.0),
    "asynchronous": _system("asynchronous, dense", "asynchronous"),
    "mipd": _system("MIPD", "mipd"),
    "mipd-cold": _system("MIPD, without warm-up", "mipd", warmup=0),
    "mipd-all": _system("MIPD, all parameters updated", "mipd", update="all"),
    "mipd-magnitude": _system("MIPD, by magnitude", "mipd", significance="magnitude"),
    "mipd-unsmoothed": _system("MIPD without smoothing", "mipd", compensate=False),
    # other settings of ours, one change at a time
    "mp2-often": _system("MP2, everything pushed every 10 steps", "mp2", full_every=10),
    "mipd-most": _system("MIPD, all sent in 8 bits, all updated", "mipd", ratio=1.0, bits=8, update="all"),
    "slimdp-half": _system("Slim-DP, 50 %, half of it core", "slimdp", alpha=0.5, beta=0.25),
    **_over_a_ring(),
    **_eager(),
    **_left_to_switches(),
    **_one_by_one(),
    "dlcp-spread": _spread("DLCP, as many packets spread evenly", "dlcp"),
    **{f"{policy}-small": _small(policy) for policy in ("dctcp-2ms", "dlcp", "dlcp-phases")},
    "dense-simulated": TrainingVariant("dense, over the simulator", SIMULATED),
    "slimdp-simulated": TrainingVariant(
        "Slim-DP, over the simulator", {"training": {"network": "simulated", "system": {"kind": "slimdp"}}}
    ),
    "topk-simulated": TrainingVariant(
        "Top-k, over the simulator", {"training": {"network": "simulated", "reducer": {"kind": "topk", "ratio": 0.01}}}
    ),
    **{
        f"{kind}-simulated": TrainingVariant(
            f"{words}, over the simulator",
            {"training": {"network": "simulated", "system": {"kind": kind, "computing": [COMPUTING]}}},
        )
        for kind, words in ASYNCHRONOUS
    },
    "terngrad-simulated": TrainingVariant(
        "TernGrad, over the simulator", {"training": {"network": "simulated", "reducer": {"kind": "terngrad"}}}
    ),
}
"""Systems and reducers at their defaults, and their baselines; momentum and learning rate are those of dense training
unless an arm changes them."""

VARIANTS: dict[str, TrainingVariant] = {
    "lossless": TrainingVariant("nothing lost", {}, number=0.0),
    **{f"p{share:g}": _lost(f"{exact_percent_text(share)} lost", share, share) for share in SHARES},
    "front": _lost("50 %, front half of the layers", 0.5, layers="front"),
    "back": _lost("50 %, back half of the layers", 0.5, layers="back"),
    "few-back": _lost("7.5 %, back half: as many packets as 50 % in front", 0.075, layers="back"),
    "small": _lost("20 %, of the smaller half", 2 * TAIL, magnitudes="small"),
    "large": _lost("20 %, of the larger half", 2 * TAIL, magnitudes="large"),
    "bursts": _lost("20 %, in runs of 16", TAIL, burst=16.0),
    "exactly": _lost("20 %, exactly, any packets", TAIL, quota=True),
    "tail": _lost("20 %, always the last ones", TAIL, last=True),
    **_rings(),
    **SYSTEMS,
    "topk": _reduced("Top-k, 1 %", kind="topk"),
    "topk-ef": _reduced("Top-k, 1 %, error feedback", feedback=True, kind="topk"),
    "dgc": _reduced("DGC, 1 %", momentum=0.0, kind="dgc"),
    "sgd": TrainingVariant("dense, without momentum", {"training": {"optimizer": {"momentum": 0.0}}}),
    "randomk": _reduced("Random-k, 1 %, without momentum", momentum=0.0, kind="randomk"),
    "randomk-ef": _reduced(
        "Random-k, 1 %, error feedback, without momentum", feedback=True, momentum=0.0, kind="randomk"
    ),
}


def label_of(key: str) -> str:
    """Return the label of a policy or an arm. Raises `KeyError` if there is none."""
    return policy_of(key).label


def policy_of(key: str) -> PolicyOverlay:
    """Return a policy or an arm. Raises `KeyError` if there is none."""
    return POLICIES[key] if key in POLICIES else VARIANTS[key]


def with_seed(tables: Json, seed: int) -> Json:
    """Return the tables with initial parameters, order of data and losses determined by a seed alone."""
    training = dict(tables["training"])
    training |= {"model_seed": seed, "data_seed": seed}
    if isinstance(training.get("network"), dict):
        training["network"] = {**training["network"], "seed": seed}
    return {**tables, "training": training}
