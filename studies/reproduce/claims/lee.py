"""Claims of Lee et al. (MLHPC '18): averaging overlapped with computing, on up to 256 nodes of a dragonfly.

A step has 256 pictures for any number of nodes; the speed of a node and its optimiser time are ours (see the scenario
`lee`). The speed-up is the time of such a step on one node, which waits for nothing, over that of an iteration. The
paper counts cores, 32 per node: its figures include losses within nodes, which are zero here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.scenarios.readable import exact_percent_text
from gradwire.studies.reproduce.claim import At, Claim, Expect, Setting, gain
from gradwire.studies.reproduce.policies import ALL_REDUCES

PICTURES = 256
CORES = 32
LEE, GRADIENTS, BARRIER = "overlapped", "overlapped-gradients", "allreduce-barrier"
OVERLAPPED = {kind: f"allreduce-{kind}" for kind in ALL_REDUCES}
ALIKE = OVERLAPPED["transpose"]
"""The all-reduce that sends like overlapped averaging: the same paths, the same number of messages."""
NODES = (16, 64, 128, 256)
QUICK = (16, 64)
MS = 10**9


@dataclass(frozen=True)
class Model:
    """A model to train.

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
        """Time of a step on one node."""
        return PICTURES * self.picture_ps + self.optimizer_ms * MS

    def setting(self, nodes: int) -> str:
        """Return the name of the setting with a number of nodes."""
        return f"{self.name}, {nodes} nodes"


VGG = Model("VGG-16", "vgg16-gpu", 100 * MS, 672_535_000_000, 27, 2516.36)
RESNET = Model("ResNet-50", "resnet50-v100", 35 * MS, 116_645_833_333, 5, 2734.25)
MODELS = (VGG, RESNET)


def _setting(model: Model, nodes: int) -> Setting:
    batch = PICTURES // nodes
    job = {
        "name": model.trace,
        "trace": model.trace,
        "workers": nodes,
        "optimizer": f"{model.optimizer_ms}ms",
        "compute_scale": round(batch * model.picture_ps / model.captured_ps, 6),
        "exchange": {"batch": batch},
    }
    policies = (LEE, *((GRADIENTS,) if model is VGG else ()), *OVERLAPPED.values(), BARRIER)
    return Setting(model.setting(nodes), "lee", policies, {"job": job}, full_only=nodes not in QUICK)


SETTINGS = {(model.name, nodes): _setting(model, nodes) for model in MODELS for nodes in NODES}


def speed_up(model: Model, nodes: int, policy: str = LEE) -> Callable[[At], float]:
    """Return the speed-up over one node."""
    return lambda at: model.alone_ps / at(model.setting(nodes), policy, "iteration")


def _relative_efficiency(model: Model, few: int, many: int) -> Callable[[At], float]:
    """Return the efficiency on many nodes over that on few."""
    return lambda at: speed_up(model, many)(at) / many / (speed_up(model, few)(at) / few)


def _cores(model: Model, nodes: int) -> Callable[[At], float]:
    """Return the speed-up, times the cores of a node, over the published one."""
    return lambda at: CORES * speed_up(model, nodes)(at) / model.published


def _beyond(few: Model, many: Model, nodes: int) -> Callable[[At], float]:
    """Return the gain over overlapped all-reduces by all-to-alls, of one model minus that of another."""
    return lambda at: gain(many.setting(nodes), LEE, ALIKE)(at) - gain(few.setting(nodes), LEE, ALIKE)(at)


ALL = tuple(SETTINGS.values())
SINGLE = {model.name: f"{model.name}, 64 nodes, one picture each" for model in MODELS}
"""Steps of 64 pictures: the computing of a node of 256, on the network of 64."""


def _single(model: Model) -> Setting:
    like = SETTINGS[model.name, 256]
    policies = (LEE, *((GRADIENTS,) if model is VGG else ()), ALIKE)
    job = {**like.changes["job"], "workers": 64}
    return Setting(SINGLE[model.name], like.scenario, policies, {"job": job})


ONE_EACH = tuple(_single(model) for model in MODELS)
E1 = Claim(
    "E1",
    "[abstract]; baselines [code]",
    "Overlapping with computing pays; an all-to-all, an update of an N-th and an all-gather overlap more than an "
    "all-reduce.",
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
    "One all-reduce per layer, in sequence, as by a thread that waits for a library; the library chooses the "
    "algorithm. Routes are shortest paths: in halving and doubling the four nodes of a switch share the one cable to "
    "their partners' switch, where Aries would also use other switches. The nodes share 256 pictures per step.",
)
E2 = Claim(
    "E2",
    "[abstract] of the design; limits [ours]",
    "The gain grows with the weight of fully connected layers, whose activations and errors are cheaper than their "
    "gradients.",
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
    "It scales to 256 nodes, until communication takes longer than computing.",
    "2516.36 times faster with VGG-16 and 2734.25 times with ResNet-50 on up to 8192 cores",
    ALL,
    (
        *(
            Expect(
                f"speed-up over one node, {nodes} nodes",
                speed_up(model, nodes),
                (model.setting(nodes),),
                low=least * nodes,
                condition=f"{model.name}, {nodes} nodes: at least {exact_percent_text(least)} of linear",
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
                _relative_efficiency(model, few, many),
                (model.setting(few), model.setting(many)),
                high=1.0,
                condition=f"{model.name}, falling from {few} to {many} nodes",
            )
            for model in MODELS
            for few, many in ((16, 64), (64, 128), (128, 256))
        ),
    ),
    "iteration",
    "The speed of a node and the number of pictures are ours: with faster nodes, or fewer pictures, the knee comes "
    "earlier. 32 cores of a node count as 32 here; the paper's figures are relative to one core [recalled] and include "
    "losses between the cores of a node.",
)
CLAIMS = [E1, E2, E3]
