"""DLCP with training in the loop: accuracy of a small net over time, on a slow fabric, under each transport.

The packet simulator carries every step: its losses are missing in the update, and its time is the clock. Computing
takes no time, so all time is communication. No message loses more than its bound: the simulator's sessions check every
step, and a broken bound ends the training run.
"""

from __future__ import annotations

from collections.abc import Callable

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.policy import overlay
from gradwire.studies.reproduce.claim import At, Claim, Expect, Setting
from gradwire.studies.reproduce.claims.tolerance import POINT, accuracy_difference
from gradwire.studies.reproduce.policies import BOUND
from gradwire.studies.reproduce.system_settings import saved_or_not
from gradwire.studies.reproduce.variants import ASYNCHRONOUS as ALONE

LOOP = "ResNet-8 over two spines, 2 epochs"
LONG_LOOP = "ResNet-8 over two spines, 20 epochs"
RING = "ResNet-8 in a ring, 2 epochs"
LONG_RING = "ResNet-8 in a ring, 20 epochs"
SMALL = "ResNet-8 over two spines, packets of 512 B, 2 epochs"
ORDER = "ResNet-8 over two spines, eager Stop, packets of 512 B, 2 epochs"
SWITCHES = "ResNet-8 over two spines, loss left to switches, packets of 512 B, 2 epochs"
ONE_BY_ONE = "ResNet-8 over two spines, workers one by one, packets of 512 B, 2 epochs"
RACKS = "ResNet-8 in a ring that is dealt over racks, 2 epochs"
TARGET, LONG_TARGET = 0.28, 0.70
"""Target accuracies [ours]."""

# Eight workers in two racks of four and two servers in a third one; two spines, so that the bandwidth between racks is
# half of that within. Packets hold the 4096 bytes of every policy's transport; for rings, and arms that say so, 512
# (`variants`): a bound forgives whole packets, and so more of its share if they are small.
_BASE: Json = {
    "topology": {"kind": "leaf_spine", "leaves": 3, "hosts_per_leaf": 4, "spines": 2},
    "switch": {"buffer": "512KiB", "ecn_threshold": "32KiB"},
    "job": {"servers": 2},
    "training": {
        "network": "simulated",
        "batch": 16,
        "augment": True,
        "optimizer": {"rate": 0.2},
        "model": "resnet8",
        "size": 16,
        "samples": 10_000,
        "epochs": 2.0,
        "score_every": 26,
        "checkpoint_every": 26,
    },
}
_LONG: Json = {"training": {"samples": 50_000, "epochs": 20.0, "score_every": 400, "checkpoint_every": 400}}

BASE = "dctcp-2ms"
ARMS = ("dctcp-2ms", "dlcp", "dlcp-phases", "dlcp-spread")
LOSSLESS = ("dctcp-kept-2ms", "dctcp-priority-2ms")
"""Arms that train exactly as DCTCP's: some of their steps suffice to measure the time of all."""
CLOCK = "ResNet-8 over two spines, 40 steps"
_CLOCK: Json = {"training": {"steps": 40, "score_every": 1_000_000, "checkpoint_every": 1_000_000}}


def _settings(names: tuple[str, str], arms: tuple[str, ...], baseline: str) -> tuple[Setting, ...]:
    return tuple(
        Setting(
            name,
            "train-tiny",
            arms,
            overlay(_BASE, more),
            full_only,
            data="pictures",
            baseline=baseline,
            target=target,
            shown="accuracy",
            lossless=dict.fromkeys(LOSSLESS, CLOCK) if baseline == BASE else {},
        )
        for name, more, full_only, target in ((names[0], {}, False, TARGET), (names[1], _LONG, True, LONG_TARGET))
    )


_SERVERS = _settings((LOOP, LONG_LOOP), ARMS, BASE)
_SMALL = Setting(
    SMALL,
    "train-tiny",
    tuple(f"{arm}-small" for arm in ARMS[:3]),
    _BASE,
    data="pictures",
    baseline=f"{BASE}-small",
    target=TARGET,
    shown="accuracy",
)
PLACES = ((LOOP, ""), (LONG_LOOP, ""), (SMALL, "-small"))
"""Settings, and the suffix of arms' names there."""
_CLOCKS = (Setting(CLOCK, "train-tiny", (BASE, *LOSSLESS), overlay(_BASE, _CLOCK), data="pictures"),)
_RINGS = _settings((RING, LONG_RING), ("ring-fabric", "ring-spread"), "ring-spread")


def _beside(name: str, baseline: str, *arms: str) -> Setting:
    """Return a setting with small packets and 2 epochs over the same fabric."""
    return Setting(
        name,
        "train-tiny",
        (baseline, *arms),
        _BASE,
        data="pictures",
        baseline=baseline,
        target=TARGET,
        shown="accuracy",
    )


_EAGER = ("eager-rotating", "eager-sequential", "eager-random")
_ENDS = ("-deep", "-deep-fifth", "-path-fifth", "-tags")
_ORDER = _beside(ORDER, f"{BASE}-small", *_EAGER, *(f"{arm}{end}" for end in _ENDS for arm in _EAGER[:2]))
_ALONE = _beside(
    ONE_BY_ONE, "asynchronous-dctcp", "asynchronous-dlcp", "asynchronous-flat", "mipd-dctcp", "mipd-dlcp", "mipd-flat"
)
_SPREAD = ("", "-spread", "-drawn", "-drawn-spread")
_SWITCHES = _beside(SWITCHES, f"{BASE}-small", *(f"switches{end}" for end in _SPREAD))
_RACKS = _beside(RACKS, "ring-lossless", *(f"ring-switches{end}" for end in _SPREAD))
_HALVES = _beside(RACKS, "ring-lossless", "ring-switches", "ring-switches-scatter", "ring-switches-gather")


def _points(arm: str, other: str, what: str, low: float, condition: str) -> tuple[Expect, ...]:
    return tuple(
        accuracy_difference(name, f"{arm}{end}", f"{other}{end}", what, low, None, condition) for name, end in PLACES
    )


def _faster(arm: str, over: str, condition: str, low: float = 0.0) -> tuple[Expect, ...]:
    return tuple(
        Expect(
            "time to the accuracy saved",
            saved_or_not(name, f"{arm}{end}", f"{over}{end}", "to"),
            (name,),
            low,
            None,
            "share",
            f"{condition}, {name}",
        )
        for name, end in PLACES
    )


def _faster_than_lossless(over: str, condition: str) -> tuple[Expect, ...]:
    """Return expectations on DLCP's time relative to an arm that trains like DCTCP, with its own clock."""

    def value(name: str, at: At) -> float:
        theirs = at(name, BASE, "steps_to") * at(CLOCK, over, "clock")
        return saved_or_not(name, "dlcp", over, "to")(lambda s, arm, m: theirs if arm == over else at(s, arm, m))

    return tuple(
        Expect(
            "time to the accuracy saved",
            lambda at, n=name: value(n, at),  # type: ignore[misc]
            (name, CLOCK),
            0.0,
            None,
            "share",
            f"{condition}, {name}",
        )
        for name in (LOOP, LONG_LOOP)
    )


def _lost(arm: str, most: float, condition: str) -> tuple[Expect, ...]:
    def value(name: str, end: str, at: At) -> float:
        return at(name, f"{arm}{end}", "worst_lost") / most

    return tuple(
        Expect(
            "largest share of a worker's tensor lost, over its bound",
            lambda at, n=name, e=end: value(n, e, at),  # type: ignore[misc]
            (name,),
            None,
            1.0,
            condition=f"{condition}, {name}",
        )
        for name, end in PLACES
    )


L1 = Claim(
    "L1",
    "[abstract] bounded loss leaves what is learned unchanged; a point as the limit [ours]",
    "With DLCP, the accuracy after the same number of steps is unchanged.",
    "bounded loss leaves accuracy and rounds unchanged",
    (*_SERVERS, _SMALL),
    _points("dlcp", "dctcp-2ms", "DLCP, less that with DCTCP", -POINT, "bound of 10 %"),
    "to",
    "DCTCP loses nothing in any order of service, so that its training runs are bit-identical.",
)
L2 = Claim(
    "L2",
    "[abstract] training up to 84.3 % faster with parameter servers",
    "DLCP reaches an accuracy sooner.",
    "up to 84.3 % faster",
    (*_SERVERS, *_CLOCKS, _SMALL),
    (
        *_faster("dlcp", "dctcp-2ms", "DCTCP, FIFO"),
        *_faster_than_lossless("dctcp-priority-2ms", "DCTCP, layer priority"),
        *_faster_than_lossless("dctcp-kept-2ms", "DCTCP, connections kept"),
    ),
    "to",
    "Communication alone: computing takes no time here. So layer priority cannot pay, since no forward pass waits. "
    "Training runs without loss are identical: the step time of DCTCP with layer priority, or over persistent "
    "connections, is the mean of 40 steps.",
)
L3 = Claim(
    "L3",
    "[notes] the transport's promise",
    "No message loses more than its bound.",
    "bound of 10 %",
    (*_SERVERS, _SMALL),
    (*_lost("dlcp", BOUND, "bound of 10 %"), *_lost("dlcp-phases", 0.41, "bounds by phase")),
    "to",
    "Every message of every step is checked against its bound during the simulation, and a broken bound ends the "
    "training run; the figure is per tensor, which is one message or several.",
)
L4 = Claim(
    "L4",
    "[notes] on DBLP (arXiv 2605.01989)",
    "Bounds that are low while gradients change fast, and high otherwise, are faster than one bound, and learn as "
    "well.",
    "24.4 % faster in the mean, 33.9 % at most",
    (*_SERVERS, _SMALL),
    (
        *_points("dlcp-phases", "dctcp-2ms", "bounds by phase, less that with DCTCP", -POINT, "as good"),
        *_faster("dlcp-phases", "dlcp", "against one bound"),
        *_faster("dlcp-phases", "dctcp-2ms", "against DCTCP"),
    ),
    "to",
    "A worker's step is critical if the sum of its gradients' magnitudes differs by half or more from that of its "
    "previous step; the first step is critical.",
)
SPREAD = "the fabric's losses, less that with them spread"
L5 = Claim(
    "L5",
    "[ours]; nobody has published it",
    "Losses by the fabric cost no more than as many packets lost evenly over workers and tensors.",
    "no measurement published",
    (*_SERVERS, *_RINGS),
    (
        *(
            accuracy_difference(name, "dlcp", "dlcp-spread", SPREAD, -POINT, None, "parameter servers")
            for name in (LOOP, LONG_LOOP)
        ),
        *(
            accuracy_difference(name, "ring-fabric", "ring-spread", SPREAD, -POINT, None, "ring")
            for name in (RING, LONG_RING)
        ),
    ),
    "accuracy",
    "Both lose the same number of packets in each step. DLCP's own losses are selected: droppable packets have small "
    "gradients, belong to messages that are long enough, and differ from step to step.",
)
SAME, OTHERS = 0.5, 0.25
"""Shares of a step's lost packets that the next step loses again: at least the first means the same packets, at most
the second different ones [ours]; by chance it is about the bound."""
TURNS = "less that in rotating order"
_PLACES = (
    ("", "switches drop"),
    ("-deep", "switches drop nothing"),
    ("-deep-fifth", "switches drop nothing, bound of 20 %"),
    ("-path-fifth", "switches drop nothing, one path, bound of 20 %"),
    ("-tags", "switches drop, tags by magnitude"),
)


def _of(name: str, arm: str, measure: str) -> Callable[[At], float]:
    return lambda at: at(name, arm, measure)


def _again(arm: str, low: float | None, high: float | None, condition: str) -> Expect:
    return Expect(
        "of the packets lost in a step: lost in the one before, too",
        _of(ORDER, arm, "again_lost"),
        (ORDER,),
        low,
        high,
        "share",
        condition,
    )


L6 = Claim(
    "L6",
    "[notes] on an independent group's measurement of eager Stop; limits [ours]",
    "Eager Stop with an in-order sender always lacks the same tail, which costs accuracy; a rotating order does not.",
    "eager Stop spends the whole bound, always on the same tail; no accuracy published",
    (_ORDER,),
    (
        *(
            accuracy_difference(
                ORDER, f"eager-sequential{end}", f"eager-rotating{end}", f"packets in order, {TURNS}", None, 0.0, words
            )
            for end, words in _PLACES
        ),
        accuracy_difference(
            ORDER,
            "eager-random",
            "eager-rotating",
            f"packets in an order that is drawn, {TURNS}",
            -POINT,
            None,
            "switches drop",
        ),
        *(_again(f"eager-sequential{end}", SAME, None, f"in order, {words}") for end, words in _PLACES),
        *(_again(f"eager-rotating{end}", None, OTHERS, f"rotating, {words}") for end, words in _PLACES),
    ),
    "accuracy",
    "Bounds are 10 % unless stated. All packets are droppable except in the arms with tags, so that only the order "
    "differs. If switches drop packets, most of those missing when a message may end were dropped rather than not sent "
    "yet.",
)
L7 = Claim(
    "L7",
    "[ours]; nobody has published it",
    "Losses by the fabric in a ring cost more in the all-gather than in the reduce-scatter.",
    "no measurement published",
    (_HALVES,),
    (
        accuracy_difference(RACKS, "ring-switches-scatter", "ring-switches-gather",
             "what switches drop lost in reduce-scatter only, less that in all-gather only", 0.0, None, "halves"),
        *(
            accuracy_difference(RACKS, f"ring-switches-{half}", "ring-lossless",
                                f"it lost in {words} only, less that without", None,
                 0.0, words)
            for half, words in (("scatter", "reduce-scatter"), ("gather", "all-gather"))
        ),
    ),
    "accuracy",
    "Drops in the other half are retransmitted. The measures include the amount lost. A lost mean is replaced by the "
    "last step's.",
)  # fmt: skip


def _over(name: str, arm: str, measure: str) -> Callable[[At], float]:
    return lambda at: at(name, arm, measure) - at(name, f"{arm}-spread", measure)


_LEFT = ((SWITCHES, "switches", "parameter servers"), (RACKS, "ring-switches", "ring"))
L8 = Claim(
    "L8",
    "[ours]; nobody has published it",
    "Drops by switches come in runs, at several workers at a time, and more in some places than in others; they cost "
    "no more than as many bytes lost evenly.",
    "no measurement published",
    (_SWITCHES, _RACKS),
    (
        *(
            Expect(f"{words}, less that where they are spread", _over(name, arm, measure), (name,), 0.0, None, "ratio",
                   f"{short}, {place}", interval=True)
            for name, arm, place in _LEFT
            for measure, words, short in (
                ("runs", "mean run of lost packets, over that by chance", "runs"),
                ("worst_place", "share lost where most is, over that of all", "places"),
            )
        ),
        *(
            Expect("correlation of two workers' shares lost", _of(name, arm, "together"), (name,), 0.0, None, "ratio",
                   f"together, {place}", interval=True)
            for name, arm, place in _LEFT
        ),
        *(
            accuracy_difference(name, f"{arm}{end}", f"{arm}{end}-spread", SPREAD, -POINT, None, f"{place}{words}")
            for end, words in (("", ""), ("-drawn", ", tags drawn"))
            for name, arm, place in _LEFT
        ),
    ),
    "lost_places",
    "Everything is sent, and the bound of 20 % forgives the drops; a message that lost more is retransmitted "
    "completely. DLCP's switches drop droppable packets only, which have small gradients; with random tags they are "
    "arbitrary. Correlations are compared with zero: spread losses are shared by all workers within a step, so that "
    "all lose more in the same steps.",
)  # fmt: skip
_TAGGED = (("dlcp", ""), ("flat", ", without layer priority"))
L9 = Claim(
    "L9",
    "[ours]; of DLCP's papers none has asynchronous servers; a point as the limit [ours]",
    "Asynchronous workers make their steps sooner over DLCP than over DCTCP, and learn as much in them.",
    "nothing published",
    (_ALONE,),
    (
        *(
            accuracy_difference(ONE_BY_ONE, f"{kind}-{key}", f"{kind}-dctcp",
                                "DLCP, less that with DCTCP", -POINT, None,
                 f"{words}{more}")
            for kind, words in ALONE
            for key, more in _TAGGED
        ),
        *(
            Expect(
                "simulated time of a step saved", saved_or_not(ONE_BY_ONE, f"{kind}-{key}", f"{kind}-dctcp", "clock"),
                (ONE_BY_ONE,), 0.0, None, "share", f"{words}{more}",
            )
            for kind, words in ALONE
            for key, more in _TAGGED
        ),
        *(
            Expect(
                "time to the accuracy saved",
                saved_or_not(ONE_BY_ONE, f"asynchronous-{key}", "asynchronous-dctcp", "to"), (ONE_BY_ONE,), 0.0, None,
                "share", f"asynchronous{more}",
            )
            for key, more in _TAGGED
        ),
    ),
    "accuracy",
    "Computing takes no time, so that all workers push and pull all the time, and a step is as many pushes as there "
    "are workers. Values sent by servers may not be lost. Layer priority serves the front layers of all workers before "
    "the back layers of any, and a push counts when it has arrived completely.",
)  # fmt: skip
CLAIMS = [L1, L2, L3, L4, L5, L6, L7, L8, L9]
