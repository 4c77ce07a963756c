"""Arms of trainings: what is done to the gradients of a training, beside another one to which it is not done.

The one place where they are written, as `policies` is for networks. Each is laid over a scenario with a table
[training] like a policy. Where `number` is given, arms lie on an axis: shares lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.analysis.claims.policies import POLICIES, TAGS, PolicyOf
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import chosen_text
from gradwire.scenarios.schema.policy import overlay


@dataclass(frozen=True)
class Arm(PolicyOf):
    """`number` : where it lies on an axis, if on any."""

    number: float | None = None


def _lost(label: str, share: float, number: float | None = None, **more: object) -> Arm:
    return Arm(label, {"training": {"network": {"loss": share, **more}}}, number=number)


SHARES = (0.01, 0.03, 0.05, 0.1, 0.2, 0.3)
"""Shares of the packets that are lost in the papers' figures [notes]."""
TAIL = 0.2
"""The share with which ways of losing it are compared."""

EVEN = 0.05
"""Share of all packets of a ring that is lost, wherever."""
WORKERS = 8
WHERE: dict[str, tuple[str, Json]] = {
    "even": ("everywhere", {"loss": EVEN, "way": "both"}),
    "scatter": ("reduce-scatter only", {"loss": 2 * EVEN, "way": "push"}),
    "gather": ("all-gather only", {"loss": 2 * EVEN, "way": "pull"}),
    "one": ("behind one worker only", {"loss": WORKERS * EVEN, "way": "both", "worker": 0}),
}
"""Where in a ring of eight the same number of packets is lost."""
FILLS: dict[str, tuple[str, Json]] = {
    "zero": ("zero", {"fill": "zero", "pull_fill": "zero"}),
    "rescaled": ("rescaled", {"fill": "rescaled", "pull_fill": "stale"}),
    "stale": ("stale", {"fill": "stale", "pull_fill": "stale"}),
}
"""What stands for it. Of what is lost in all-gather nothing can be rescaled: the last step's mean stays."""


def _rings() -> dict[str, Arm]:
    """Losses in a ring, by where they are and what stands for them, and with workers brought together again."""
    found = {}
    for where, (place, network) in WHERE.items():
        for fill, (words, job) in FILLS.items():
            job = {**job, "exchange": {"kind": "ring"}, "servers": 0}
            found[f"{where}-{fill}"] = Arm(f"{place}, {words}", {"training": {"network": network}}, job)
    together = {"training": {"network": WHERE["gather"][1], "resync": 20}}
    found["gather-resync"] = Arm("all-gather only, stale, together every 20 steps", together, found["gather-stale"].job)
    return found


def _reduced(label: str, feedback: bool = False, momentum: float = 0.9, **reducer: object) -> Arm:
    training = {
        "reducer": {"ratio": 0.01, **reducer}, "error_feedback": feedback, "optimizer": {"momentum": momentum},
    }  # fmt: skip
    return Arm(label, {"training": training})


COMPUTING = "5ms"
"""What a worker's step takes besides communication: about that of 16 small pictures on one thread here [ours]."""


def _system(label: str, kind: str, momentum: float = 0.9, rate: float = 0.2, **more: object) -> Arm:
    return Arm(
        label,
        {"training": {"system": {"kind": kind, **more}, "optimizer": {"momentum": momentum, "rate": rate}}},
    )  # fmt: skip


SIMULATED: Json = {"training": {"network": "simulated"}}


SPREAD: Json = {"training": {"spread": True}}


def _spread(label: str, policy: str) -> Arm:
    """A policy whose losses are spread evenly in each step."""
    of = POLICIES[policy]
    return Arm(label, {**of.set, **SPREAD}, of.job)


def _small(policy: str, changes: Json | None = None, label: str = "", **job: object) -> Arm:
    """A policy whose packets hold 512 bytes: of messages of ten packets 5 % is none but a last one that is short."""
    of = POLICIES[policy]
    small = overlay(overlay(dict(of.set), {"transport": {"payload": "512B"}}), changes or {})
    return Arm(label or f"{of.label}, packets of 512 B", small, {**of.job, **job})


def _over_a_ring() -> dict[str, Arm]:
    """DLCP in a ring, whose hops may all lose something: as the fabric has it, and spread evenly."""
    ring: Json = {
        "push_bound": EVEN, "pull_bound": EVEN, "pull_important": False, "servers": 0, "exchange": {"kind": "ring"},
    }  # fmt: skip
    return {
        "ring-fabric": _small("dlcp", {}, "ring, DLCP with bounds of 5 %", **ring),
        "ring-spread": _small("dlcp", SPREAD, "ring, as many bytes spread evenly", **ring),
    }


KEPT: Json = {"training": {"keep_missing": True}}
"""For measures of which packets are lost."""
ORDERS = {"rotating": "important_first", "sequential": "sequential", "random": "random"}
DEEP: Json = {"switch": {"selective_drop": False, "buffer": "4MiB"}}
"""Switches that hold a step of all workers, and drop nothing."""
ONE_PATH: Json = {**DEEP, "load_balancing": "ecmp"}
"""All packets of a pair of hosts by one path, so that they arrive as they were sent."""


def _eager() -> dict[str, Arm]:
    """Eager Stop, by the order in which packets are sent. Where every packet is droppable nothing but the order says
    which of them are missing when a message may end, and what switches have dropped; with tags by magnitude it says
    which of the small ones are."""
    any_packet: Json = {"tagging": {"layer_priority": True, "magnitude": True, "important_fraction": 0.0}}
    kinds: tuple[tuple[str, str, Json, Json], ...] = (
        ("", "", {}, any_packet), ("-deep", ", no drops", DEEP, any_packet), ("-tags", ", tags", {}, {}),
        ("-deep-fifth", ", no drops, 20 %", DEEP, {**any_packet, "push_bound": TAIL}),
        ("-path-fifth", ", no drops, 20 %, one path", ONE_PATH, {**any_packet, "push_bound": TAIL}),
    )  # fmt: skip
    found = {}
    for end, words, changes, job in kinds:
        for order, key in ORDERS.items():
            if order == "random" and end:
                continue
            eager = overlay(overlay(KEPT, changes), {"transport": {"stop_policy": "eager", "send_order": key}})
            found[f"eager-{order}{end}"] = _small("dlcp", eager, f"eager, {order}{words}", **job)
    return found


LEFT = 0.2
"""Bound under which all but the worst of what switches drop stays lost, if nothing else does."""


def _left_to_switches() -> dict[str, Arm]:
    """DLCP that sends everything and goes without what was dropped on the way: what is lost is the fabric's choice. The
    ring's workers are dealt over the racks, so that all its hops pass the spines; at home in a rack hardly anything of
    them is dropped. Drawn tags make as many packets droppable, whatever their magnitudes."""
    probed = overlay(KEPT, {"transport": {"stop_policy": "on_probe"}})
    spread = overlay(probed, SPREAD)
    ring: Json = {"servers": 0, "exchange": {"kind": "ring"}, "placement": "spread"}
    push: Json = {"push_bound": LEFT, "pull_bound": 0.0}
    pull: Json = {"push_bound": 0.0, "pull_bound": LEFT, "pull_important": False}
    both: Json = {**pull, "push_bound": LEFT, **ring}
    drawn: Json = {"tagging": {**TAGS, "random": True}}
    found = {
        "ring-lossless": _small("dctcp-2ms", {}, "ring, nothing lost", **ring),
        "ring-switches-scatter": _small("dlcp", probed, "ring, in reduce-scatter only", **push, **ring),
        "ring-switches-gather": _small("dlcp", probed, "ring, in all-gather only", **pull, **ring),
    }
    for key, words, job in (("switches", "", push), ("ring-switches", "ring, ", both)):
        for end, more, tags in (("", "", {}), ("-drawn", ", tags drawn", drawn)):
            found[f"{key}{end}"] = _small("dlcp", probed, f"{words}loss left to switches{more}", **job, **tags)
            even = f"{words}as many bytes spread evenly{more}"
            found[f"{key}{end}-spread"] = _small("dlcp", spread, even, **job, **tags)
    return found


ONE_BY_ONE = (("asynchronous", "asynchronous"), ("mipd", "MIPD"))
"""Systems whose workers come one by one, and words for them."""


def _one_by_one() -> dict[str, Arm]:
    """Those over a fabric, under transports of both kinds; DLCP's with its priorities of layers and without."""
    flat: Json = {"tagging": {**TAGS, "layer_priority": False}}
    kinds: tuple[tuple[str, str, str, Json], ...] = (
        ("dctcp", "dctcp-2ms", "DCTCP", {}), ("dlcp", "dlcp", "DLCP", {}),
        ("flat", "dlcp", "DLCP without layer priority", flat),
    )  # fmt: skip
    return {
        f"{kind}-{key}": _small(policy, {"training": {"system": {"kind": kind}}}, f"{words}, {transport}", **job)
        for kind, words in ONE_BY_ONE
        for key, policy, transport, job in kinds
    }


SYSTEMS: dict[str, Arm] = {
    "dense": Arm("dense", {}),
    "qsgd": Arm("QSGD, 8 bits", {"training": {"reducer": {"kind": "qsgd"}}}),
    "terngrad": Arm("TernGrad", {"training": {"reducer": {"kind": "terngrad"}}}),
    "powersgd": Arm(
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
    # settings of ours that were tried, one thing at a time
    "mp2-often": _system("MP2, everything pushed every 10 steps", "mp2", full_every=10),
    "mipd-most": _system("MIPD, all sent in 8 bits, all updated", "mipd", ratio=1.0, bits=8, update="all"),
    "slimdp-half": _system("Slim-DP, 50 %, half of it core", "slimdp", alpha=0.5, beta=0.25),
    **_over_a_ring(),
    **_eager(),
    **_left_to_switches(),
    **_one_by_one(),
    "dlcp-spread": _spread("DLCP, as many packets spread evenly", "dlcp"),
    **{f"{policy}-small": _small(policy) for policy in ("dctcp-2ms", "dlcp", "dlcp-phases")},
    "dense-simulated": Arm("dense, over the simulator", SIMULATED),
    "slimdp-simulated": Arm(
        "Slim-DP, over the simulator", {"training": {"network": "simulated", "system": {"kind": "slimdp"}}}
    ),
    "topk-simulated": Arm(
        "Top-k, over the simulator", {"training": {"network": "simulated", "reducer": {"kind": "topk", "ratio": 0.01}}}
    ),
    **{
        f"{kind}-simulated": Arm(
            f"{words}, over the simulator",
            {"training": {"network": "simulated", "system": {"kind": kind, "computing": [COMPUTING]}}},
        )
        for kind, words in ONE_BY_ONE
    },
    "terngrad-simulated": Arm(
        "TernGrad, over the simulator", {"training": {"network": "simulated", "reducer": {"kind": "terngrad"}}}
    ),
}
"""Systems and reducers at their defaults, and what they are beside; momentum and learning rate are those of dense
training unless an arm says otherwise."""

ARMS: dict[str, Arm] = {
    "lossless": Arm("nothing lost", {}, number=0.0),
    **{f"p{share:g}": _lost(f"{chosen_text(share)} lost", share, share) for share in SHARES},
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
    "sgd": Arm("dense, without momentum", {"training": {"optimizer": {"momentum": 0.0}}}),
    "randomk": _reduced("Random-k, 1 %, without momentum", momentum=0.0, kind="randomk"),
    "randomk-ef": _reduced(
        "Random-k, 1 %, error feedback, without momentum", feedback=True, momentum=0.0, kind="randomk"
    ),
}


def label_of(key: str) -> str:
    """What a policy or an arm is called. Raises `KeyError` for what is neither."""
    return policy_of(key).label


def policy_of(key: str) -> PolicyOf:
    """A policy or an arm. Raises `KeyError` for what is neither."""
    return POLICIES[key] if key in POLICIES else ARMS[key]


def seeded(tables: Json, seed: int) -> Json:
    """A training whose initial parameters, order of data and losses are those of a seed, whatever else differs."""
    training = dict(tables["training"])
    training |= {"model_seed": seed, "data_seed": seed}
    if isinstance(training.get("network"), dict):
        training["network"] = {**training["network"], "seed": seed}
    return {**tables, "training": training}
