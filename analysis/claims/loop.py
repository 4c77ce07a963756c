"""DLCP in the loop: what a small net has learned by when, over a fabric that is too slow for it, under each transport.

The packet simulator carries every step: what it loses is missing in the update, and its time is the clock. Computing
takes none, so that all of the time is communication. No message loses more than its bound: the simulator's sessions
hold every step to that, and a training in which one is broken ends.
"""

from __future__ import annotations

from collections.abc import Callable

from gradwire.analysis.claims.arms import ONE_BY_ONE as ALONE
from gradwire.analysis.claims.claim import At, Claim, Expect, Setting
from gradwire.analysis.claims.policies import BOUND
from gradwire.analysis.claims.systems import saved_or_not
from gradwire.analysis.claims.tolerance import POINT, than
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.policy import overlay

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
"""Accuracies that times are to [ours]."""

# Eight workers in two racks of four and two servers in a third one; two spines, so that racks have half as much
# bandwidth between them as within. Packets hold the 4096 bytes of every policy's transport; of rings, and of arms that
# say so, 512 (`arms`): a bound forgives whole packets, and so more of its share where they are small.
_BASE: Json = {
    "topology": {"kind": "leaf_spine", "leaves": 3, "hosts_per_leaf": 4, "spines": 2},
    "switch": {"buffer": "512KiB", "ecn_threshold": "32KiB"},
    "job": {"servers": 2},
    "training": {
        "network": "simulated", "batch": 16, "augment": True, "optimizer": {"rate": 0.2}, "model": "resnet8",
        "size": 16, "samples": 10_000, "epochs": 2.0, "score_every": 26, "checkpoint_every": 26,
    },
}  # fmt: skip
_LONG: Json = {"training": {"samples": 50_000, "epochs": 20.0, "score_every": 400, "checkpoint_every": 400}}

BASE = "dctcp-2ms"
ARMS = ("dctcp-2ms", "dlcp", "dlcp-phases", "dlcp-spread")
LOSSLESS = ("dctcp-kept-2ms", "dctcp-priority-2ms")
"""Arms that learn what DCTCP's learns, bit by bit: some steps of theirs say how long all of them take."""
CLOCK = "ResNet-8 over two spines, 40 steps"
_CLOCK: Json = {"training": {"steps": 40, "score_every": 1_000_000, "checkpoint_every": 1_000_000}}


def _settings(names: tuple[str, str], arms: tuple[str, ...], baseline: str) -> tuple[Setting, ...]:
    return tuple(
        Setting(
            name, "train-tiny", arms, overlay(_BASE, more), full_only, data="pictures", baseline=baseline,
            target=target, shown="accuracy", lossless=dict.fromkeys(LOSSLESS, CLOCK) if baseline == BASE else {},
        )
        for name, more, full_only, target in ((names[0], {}, False, TARGET), (names[1], _LONG, True, LONG_TARGET))
    )  # fmt: skip


_SERVERS = _settings((LOOP, LONG_LOOP), ARMS, BASE)
_SMALL = Setting(
    SMALL, "train-tiny", tuple(f"{arm}-small" for arm in ARMS[:3]), _BASE, data="pictures", baseline=f"{BASE}-small",
    target=TARGET, shown="accuracy",
)  # fmt: skip
PLACES = ((LOOP, ""), (LONG_LOOP, ""), (SMALL, "-small"))
"""Settings, and what the names of arms end with there."""
_CLOCKS = (Setting(CLOCK, "train-tiny", (BASE, *LOSSLESS), overlay(_BASE, _CLOCK), data="pictures"),)
_RINGS = _settings((RING, LONG_RING), ("ring-fabric", "ring-spread"), "ring-spread")


def _beside(name: str, baseline: str, *arms: str) -> Setting:
    """Small packets, 2 epochs, over the same fabric."""
    return Setting(
        name, "train-tiny", (baseline, *arms), _BASE, data="pictures", baseline=baseline, target=TARGET,
        shown="accuracy",
    )  # fmt: skip


_EAGER = ("eager-rotating", "eager-sequential", "eager-random")
_ENDS = ("-deep", "-deep-fifth", "-path-fifth", "-tags")
_ORDER = _beside(ORDER, f"{BASE}-small", *_EAGER, *(f"{arm}{end}" for end in _ENDS for arm in _EAGER[:2]))
_ALONE = _beside(
    ONE_BY_ONE, "asynchronous-dctcp", "asynchronous-dlcp", "asynchronous-flat", "mipd-dctcp", "mipd-dlcp", "mipd-flat",
)  # fmt: skip
_SPREAD = ("", "-spread", "-drawn", "-drawn-spread")
_SWITCHES = _beside(SWITCHES, f"{BASE}-small", *(f"switches{end}" for end in _SPREAD))
_RACKS = _beside(RACKS, "ring-lossless", *(f"ring-switches{end}" for end in _SPREAD))
_HALVES = _beside(RACKS, "ring-lossless", "ring-switches", "ring-switches-scatter", "ring-switches-gather")


def _points(arm: str, other: str, what: str, low: float, condition: str) -> tuple[Expect, ...]:
    return tuple(than(name, f"{arm}{end}", f"{other}{end}", what, low, None, condition) for name, end in PLACES)


def _faster(arm: str, over: str, condition: str, low: float = 0.0) -> tuple[Expect, ...]:
    return tuple(
        Expect("time to the accuracy saved", saved_or_not(name, f"{arm}{end}", f"{over}{end}", "to"), (name,),
               low, None, "share", f"{condition}, {name}")
        for name, end in PLACES
    )  # fmt: skip


def _faster_than_lossless(over: str, condition: str) -> tuple[Expect, ...]:
    """DLCP's time beside that of an arm that learns what DCTCP's does, and has a clock of its own."""

    def value(name: str, at: At) -> float:
        theirs = at(name, BASE, "steps_to") * at(CLOCK, over, "clock")
        return saved_or_not(name, "dlcp", over, "to")(lambda s, arm, m: theirs if arm == over else at(s, arm, m))

    return tuple(
        Expect("time to the accuracy saved", lambda at, n=name: value(n, at),  # type: ignore[misc]
               (name, CLOCK), 0.0, None, "share", f"{condition}, {name}")
        for name in (LOOP, LONG_LOOP)
    )  # fmt: skip


def _lost(arm: str, most: float, condition: str) -> tuple[Expect, ...]:
    def value(name: str, end: str, at: At) -> float:
        return at(name, f"{arm}{end}", "worst_lost") / most

    return tuple(
        Expect("largest share of a worker's tensor lost, over its bound", lambda at, n=name, e=end: value(n, e, at),  # type: ignore[misc]
               (name,), None, 1.0, condition=f"{condition}, {name}")
        for name, end in PLACES
    )  # fmt: skip


L1 = Claim(
    "L1",
    "[abstract] bounded loss leaves what is learned unchanged; a point as the limit [ours]",
    "With DLCP, what is learned in as many steps is the same.",
    "bounded loss leaves accuracy and rounds unchanged",
    (*_SERVERS, _SMALL),
    _points("dlcp", "dctcp-2ms", "DLCP, less that with DCTCP", -POINT, "bound of 10 %"),
    "to",
    "DCTCP loses nothing, in whatever order it is served, so that its trainings are alike to the bit.",
)
L2 = Claim(
    "L2",
    "[abstract] training up to 84.3 % faster with parameter servers",
    "It is learned sooner.",
    "up to 84.3 % faster",
    (*_SERVERS, *_CLOCKS, _SMALL),
    (
        *_faster("dlcp", "dctcp-2ms", "DCTCP, FIFO"),
        *_faster_than_lossless("dctcp-priority-2ms", "DCTCP, layer priority"),
        *_faster_than_lossless("dctcp-kept-2ms", "DCTCP, connections kept"),
    ),
    "to",
    "Of communication alone: computing takes no time here. So layer priority cannot pay, since no forward pass waits. "
    "Trainings that lose nothing are alike: how long DCTCP's steps take with layer priority, or over connections that "
    "are kept, is the mean of 40.",
)
L3 = Claim(
    "L3",
    "[notes] the transport's promise",
    "No message loses more than its bound.",
    "bound of 10 %",
    (*_SERVERS, _SMALL),
    (*_lost("dlcp", BOUND, "bound of 10 %"), *_lost("dlcp-phases", 0.41, "bounds by phase")),
    "to",
    "Every message of every step is held to its bound while it is simulated, and a broken one ends the training; the "
    "figure is of tensors, which are one message or several.",
)
L4 = Claim(
    "L4",
    "[notes] on DBLP (arXiv 2605.01989)",
    "Bounds that are low while gradients change fast, and high else, are faster than one bound, and learn as well.",
    "24.4 % faster in the mean, 33.9 % at most",
    (*_SERVERS, _SMALL),
    (
        *_points("dlcp-phases", "dctcp-2ms", "bounds by phase, less that with DCTCP", -POINT, "as good"),
        *_faster("dlcp-phases", "dlcp", "against one bound"),
        *_faster("dlcp-phases", "dctcp-2ms", "against DCTCP"),
    ),
    "to",
    "A worker's step is critical if the sum of its gradients' magnitudes differs by half or more from that of its last "
    "step, and the first one is.",
)
SPREAD = "the fabric's losses, less that with them spread"
L5 = Claim(
    "L5",
    "[ours]; nobody has published it",
    "What the fabric loses costs no more than as many packets lost evenly over workers and tensors.",
    "no measurement published",
    (*_SERVERS, *_RINGS),
    (
        *(than(name, "dlcp", "dlcp-spread", SPREAD, -POINT, None, "parameter servers") for name in (LOOP, LONG_LOOP)),
        *(than(name, "ring-fabric", "ring-spread", SPREAD, -POINT, None, "ring") for name in (RING, LONG_RING)),
    ),
    "accuracy",
    "In each step as many packets are lost in both. DLCP's own are chosen: droppable ones are small, of messages that "
    "are long enough, and others in every step.",
)
SAME, OTHERS = 0.5, 0.25
"""Shares of what is lost in a step that is lost again in the next: from the first on the same packets are lost, up to
the second one others [ours]; by chance it is about the bound."""
TURNS = "less that in rotating order"
_PLACES = (
    ("", "switches drop"), ("-deep", "switches drop nothing"), ("-deep-fifth", "switches drop nothing, bound of 20 %"),
    ("-path-fifth", "switches drop nothing, one path, bound of 20 %"), ("-tags", "switches drop, tags by magnitude"),
)  # fmt: skip


def _of(name: str, arm: str, measure: str) -> Callable[[At], float]:
    return lambda at: at(name, arm, measure)


def _again(arm: str, low: float | None, high: float | None, condition: str) -> Expect:
    return Expect(
        "of the packets lost in a step: lost in the one before, too", _of(ORDER, arm, "again_lost"), (ORDER,), low,
        high, "share", condition,
    )  # fmt: skip


L6 = Claim(
    "L6",
    "[notes] on an independent group's measurement of eager Stop; limits [ours]",
    "Eager Stop with a sender in order always goes without the same tail, and that costs accuracy; in an order that "
    "rotates it does not.",
    "eager Stop spends the whole bound, always on the same tail; no accuracy published",
    (_ORDER,),
    (
        *(
            than(ORDER, f"eager-sequential{end}", f"eager-rotating{end}", f"packets in order, {TURNS}", None, 0.0,
                 words)
            for end, words in _PLACES
        ),
        than(ORDER, "eager-random", "eager-rotating", f"packets in an order that is drawn, {TURNS}", -POINT, None,
             "switches drop"),
        *(_again(f"eager-sequential{end}", SAME, None, f"in order, {words}") for end, words in _PLACES),
        *(_again(f"eager-rotating{end}", None, OTHERS, f"rotating, {words}") for end, words in _PLACES),
    ),
    "accuracy",
    "Bounds are of 10 % where none is said. All packets are droppable but where tags are said, so that nothing but the "
    "order differs. Where switches drop, what is missing when a message may end is what they have dropped more than "
    "what was not sent yet.",
)  # fmt: skip
L7 = Claim(
    "L7",
    "[ours]; nobody has published it",
    "What a fabric loses of a ring costs more in all-gather than in reduce-scatter.",
    "no measurement published",
    (_HALVES,),
    (
        than(RACKS, "ring-switches-scatter", "ring-switches-gather",
             "what switches drop lost in reduce-scatter only, less that in all-gather only", 0.0, None, "halves"),
        *(
            than(RACKS, f"ring-switches-{half}", "ring-lossless", f"it lost in {words} only, less that without", None,
                 0.0, words)
            for half, words in (("scatter", "reduce-scatter"), ("gather", "all-gather"))
        ),
    ),
    "accuracy",
    "What is dropped in the other half is sent again there. How much was lost is among the measures. A lost mean "
    "becomes the last step's.",
)  # fmt: skip


def _over(name: str, arm: str, measure: str) -> Callable[[At], float]:
    return lambda at: at(name, arm, measure) - at(name, f"{arm}-spread", measure)


_LEFT = ((SWITCHES, "switches", "parameter servers"), (RACKS, "ring-switches", "ring"))
L8 = Claim(
    "L8",
    "[ours]; nobody has published it",
    "What switches drop comes in runs, at several workers at a time, and more in some places than in others; and it "
    "costs no more than as many bytes lost evenly.",
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
            than(name, f"{arm}{end}", f"{arm}{end}-spread", SPREAD, -POINT, None, f"{place}{words}")
            for end, words in (("", ""), ("-drawn", ", tags drawn"))
            for name, arm, place in _LEFT
        ),
    ),
    "lost_places",
    "Everything is sent, and the bound of 20 % forgives what was dropped; of a message that has lost more all of it is "
    "sent again. DLCP's switches drop droppable packets only, which are small ones; with drawn tags they are any. "
    "Correlations are held against zero: what is spread is a step's losses, of which all workers have their part, so "
    "that all lose more in the same steps.",
)  # fmt: skip
_TAGGED = (("dlcp", ""), ("flat", ", without layer priority"))
L9 = Claim(
    "L9",
    "[ours]; of DLCP's papers none has asynchronous servers; a point as the limit [ours]",
    "Workers that push when they are ready make their steps sooner over DLCP than over DCTCP, and learn as much in "
    "them.",
    "nothing published",
    (_ALONE,),
    (
        *(
            than(ONE_BY_ONE, f"{kind}-{key}", f"{kind}-dctcp", "DLCP, less that with DCTCP", -POINT, None,
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
    "are workers. Nothing of what servers send back may be lost. Layer priorities let the front layers of all go "
    "before the back ones of any, and a push counts when all of it is there.",
)  # fmt: skip
CLAIMS = [L1, L2, L3, L4, L5, L6, L7, L8, L9]
