"""Claims of Lee et al. (MLHPC '18): averaging that overlaps with computing, on up to 256 nodes of a dragonfly.

A step has 256 pictures, however many nodes there are; how fast a node is, and what its optimiser takes, is ours (see
the scenario `lee`). The speed-up over one node is the time of such a step on one node, which has nothing to wait for,
over that of an iteration. The paper counts cores, 32 of them in a node: its figures hold what is lost inside of nodes,
too, which is nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.analysis.claims.claim import At, Claim, Expect, Setting, gain
from gradwire.analysis.claims.policies import ALL_REDUCES
from gradwire.scenarios.readable import chosen_text

PICTURES = 256
CORES = 32
LEE, GRADIENTS, BARRIER = "overlapped", "overlapped-gradients", "allreduce-barrier"
OVERLAPPED = {kind: f"allreduce-{kind}" for kind in ALL_REDUCES}
ALIKE = OVERLAPPED["transpose"]
"""The all-reduce that sends as overlapped averaging does: the same ways, the same number of messages."""
NODES = (16, 64, 128, 256)
QUICK = (16, 64)
MS = 10**9


@dataclass(frozen=True)
class Model:
    """What is trained.

    picture_ps : of a node for one picture, forward and backward; `captured_ps` of the trace for its own batch.
    optimizer_ms : of all parameters on one node. published : speed-up on 8192 cores.
    """

    name: str
    trace: str
    picture_ps: int
    captured_ps: int
    optimizer_ms: int
    published: float

    @property
    def alone_ps(self) -> int:
        """A step on one node."""
        return PICTURES * self.picture_ps + self.optimizer_ms * MS

    def setting(self, nodes: int) -> str:
        """The name of the setting with so many nodes."""
        return f"{self.name}, {nodes} nodes"


VGG = Model("VGG-16", "vgg16-gpu", 100 * MS, 672_535_000_000, 27, 2516.36)
RESNET = Model("ResNet-50", "resnet50-v100", 35 * MS, 116_645_833_333, 5, 2734.25)
MODELS = (VGG, RESNET)


def _setting(model: Model, nodes: int) -> Setting:
    batch = PICTURES // nodes
    job = {
        "name": model.trace, "trace": model.trace, "workers": nodes, "optimizer": f"{model.optimizer_ms}ms",
        "compute_scale": round(batch * model.picture_ps / model.captured_ps, 6), "exchange": {"batch": batch},
    }  # fmt: skip
    policies = (LEE, *((GRADIENTS,) if model is VGG else ()), *OVERLAPPED.values(), BARRIER)
    return Setting(model.setting(nodes), "lee", policies, {"job": job}, full_only=nodes not in QUICK)


SETTINGS = {(model.name, nodes): _setting(model, nodes) for model in MODELS for nodes in NODES}


def speed_up(model: Model, nodes: int, policy: str = LEE) -> Callable[[At], float]:
    """How many times faster than one node."""
    return lambda at: model.alone_ps / at(model.setting(nodes), policy, "iteration")


def _kept(model: Model, few: int, many: int) -> Callable[[At], float]:
    """The efficiency on many nodes over that on few."""
    return lambda at: speed_up(model, many)(at) / many / (speed_up(model, few)(at) / few)


def _cores(model: Model, nodes: int) -> Callable[[At], float]:
    """The speed-up, times the cores of a node, over the published one."""
    return lambda at: CORES * speed_up(model, nodes)(at) / model.published


def _beyond(few: Model, many: Model, nodes: int) -> Callable[[At], float]:
    """By how much the gain over overlapped all-reduces by all-to-alls is larger with one model than with another."""
    return lambda at: gain(many.setting(nodes), LEE, ALIKE)(at) - gain(few.setting(nodes), LEE, ALIKE)(at)


ALL = tuple(SETTINGS.values())
SINGLE = {model.name: f"{model.name}, 64 nodes, one picture each" for model in MODELS}
"""Steps of 64 pictures: what a node of 256 has to compute, with the network of 64."""


def _single(model: Model) -> Setting:
    like = SETTINGS[model.name, 256]
    policies = (LEE, *((GRADIENTS,) if model is VGG else ()), ALIKE)
    job = {**like.changes["job"], "workers": 64}
    return Setting(SINGLE[model.name], like.scenario, policies, {"job": job})


ONE_EACH = tuple(_single(model) for model in MODELS)
E1 = Claim(
    "E1",
    "[abstract]; baselines [code]",
    "Overlapping with computing pays, and an all-to-all, an update of an N-th and an all-gather overlap with more of "
    "it than an all-reduce.",
    "faster than algorithms that use MPI_Allreduce",
    (*ALL, *ONE_EACH),
    tuple(
        Expect(
            "faster than overlapped all-reduces, two all-to-alls",
            gain(SINGLE[model.name], LEE, ALIKE),
            (SINGLE[model.name],),
            low=0.1,
            unit="share",
            condition=SINGLE[model.name],
        )
        for model in MODELS
    )
    + tuple(
        Expect(
            words,
            gain(model.setting(nodes), policy, over),
            (model.setting(nodes),),
            low=0.0,
            unit="share",
            condition=f"{model.name}, {nodes} nodes: {words}",
        )
        for model in MODELS
        for nodes in NODES
        for policy, over, words in (
            (ALIKE, BARRIER, "overlapped all-reduces faster than those behind the backward pass"),
            *(
                (LEE, policy, f"faster than overlapped all-reduces, {ALL_REDUCES[kind]}")
                for kind, policy in OVERLAPPED.items()
            ),
        )
    ),
    "iteration",
    "One all-reduce for each layer, one after the other, as one thread that waits for a library does it; by which "
    "algorithm, the library chooses. Routes are the shortest ones: in halving and doubling the four nodes of a switch "
    "share the one cable to the switch of their partners, where Aries would send some of it by other switches. 256 "
    "pictures a step, shared by the nodes.",
)
E2 = Claim(
    "E2",
    "[abstract] of the design; limits [ours]",
    "The more fully connected layers weigh, the more is gained, and their activations and errors are cheaper than "
    "their gradients.",
    "no figure",
    (*ALL, *ONE_EACH),
    (
        Expect(
            "gain over overlapped all-reduces, VGG-16 less ResNet-50",
            lambda at: gain(SINGLE["VGG-16"], LEE, ALIKE)(at) - gain(SINGLE["ResNet-50"], LEE, ALIKE)(at),
            tuple(SINGLE.values()),
            low=0.0,
            unit="share",
            condition="VGG-16 more than ResNet-50, 64 nodes, one picture each",
        ),
        Expect(
            "activations and errors faster than gradients",
            gain(SINGLE["VGG-16"], LEE, GRADIENTS),
            (SINGLE["VGG-16"],),
            low=0.01,
            unit="share",
            condition="activations and errors, 64 nodes, one picture each",
        ),
        *(
            Expect(
                "gain over overlapped all-reduces, VGG-16 less ResNet-50",
                _beyond(RESNET, VGG, nodes),
                (VGG.setting(nodes), RESNET.setting(nodes)),
                low=0.0,
                unit="share",
                condition=f"VGG-16 more than ResNet-50, {nodes} nodes",
            )
            for nodes in NODES
        ),
        *(
            Expect(
                "activations and errors faster than gradients",
                gain(VGG.setting(nodes), LEE, GRADIENTS),
                (VGG.setting(nodes),),
                low=0.01,
                unit="share",
                condition=f"activations and errors, {nodes} nodes",
            )
            for nodes in NODES
        ),
    ),
    "iteration",
)
E3 = Claim(
    "E3",
    "[abstract]; nodes and cores [recalled]; limits [ours]",
    "It scales to 256 nodes, up to where communicating takes longer than computing.",
    "2516.36 times faster with VGG-16 and 2734.25 times with ResNet-50 on up to 8192 cores",
    ALL,
    (
        *(
            Expect(
                f"speed-up over one node, {nodes} nodes",
                speed_up(model, nodes),
                (model.setting(nodes),),
                low=least * nodes,
                condition=f"{model.name}, {nodes} nodes: at least {chosen_text(least)} of linear",
            )
            for model in MODELS
            for nodes, least in zip(NODES, (0.9, 0.75, 0.5, 0.3), strict=True)
        ),
        *(
            Expect(
                f"32 times the speed-up on 256 nodes, over the published {model.published:g}",
                _cores(model, 256),
                (model.setting(256),),
                low=0.5,
                condition=f"{model.name}, 8192 cores",
            )
            for model in MODELS
        ),
        *(
            Expect(
                f"efficiency at {many} nodes over that at {few}",
                _kept(model, few, many),
                (model.setting(few), model.setting(many)),
                high=1.0,
                condition=f"{model.name}, falling from {few} to {many} nodes",
            )
            for model in MODELS
            for few, many in ((16, 64), (64, 128), (128, 256))
        ),
    ),
    "iteration",
    "The speed of a node is ours, and so is the number of pictures: with faster nodes, or fewer pictures, the knee "
    "comes earlier. 32 cores of a node count as 32 here; the paper's figures are over one core [recalled] and hold "
    "what cores of one node lose to each other.",
)
CLAIMS = [E1, E2, E3]
