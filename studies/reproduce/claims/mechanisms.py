"""Claims of DLCP about its mechanisms and its promise: S8, S9 and S10."""

from __future__ import annotations

from typing import Any

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import exact_percent_text
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.claims.bursts import S1, burst, measure_of
from gradwire.studies.reproduce.claims.training_jobs import S4
from gradwire.studies.reproduce.policies import DCTCP, POLICIES

LOSSES = ("0", "0.0001", "0.001", "0.01")
GRAY = {loss: "no loss" if loss == "0" else f"{exact_percent_text(float(loss))} loss" for loss in LOSSES}
GRAY_JOB: Json = {"job": {"iterations": 3, "workers": 6, "servers": 4}}


def gray_settings(policies: tuple[str, ...]) -> tuple[Setting, ...]:
    """Return settings with six workers, the first on a link that loses packets at random in both directions."""
    return tuple(
        Setting(
            name,
            "demo-cpu",
            policies,
            GRAY_JOB
            if loss == "0"
            else {
                **GRAY_JOB,
                "fault": [{"kind": "gray_loss", "at": "0ns", "between": ["h0", "leaf0"], "loss": float(loss)}],
            },
        )
        for loss, name in GRAY.items()
    )


def slowdown(policy: str, loss: str) -> Any:
    """Return the increase of iteration time over that without loss."""
    return lambda at: at(GRAY[loss], policy, "iteration") / at(GRAY["0"], policy, "iteration") - 1


def expect_unchanged(policy: str, words: str, most: float = 0.02) -> tuple[Expect, ...]:
    """Return expectations that the increase without loss is at most `most`."""
    return tuple(
        Expect(
            f"{words} slower with {GRAY[loss]}",
            slowdown(policy, loss),
            (GRAY["0"], GRAY[loss]),
            high=most,
            unit="share",
            condition=f"{words} holds, {GRAY[loss]}",
        )
        for loss in LOSSES[1:]
    )


def expect_slower(policies: tuple[str, ...], least: float = 0.05) -> tuple[Expect, ...]:
    """Return expectations that 1 % of loss increases iteration time by at least `least`."""
    return tuple(
        Expect(
            f"{POLICIES[policy].label} slower with 1 % loss",
            slowdown(policy, "0.01"),
            (GRAY["0"], GRAY["0.01"]),
            low=least,
            unit="share",
            condition=f"{POLICIES[policy].label} degrades",
            blame=(GRAY["0.01"], policy),
        )
        for policy in policies
    )


S8 = Claim(
    "S8",
    "[notes] on MLT's gray failures; limit [ours]",
    "Random loss on one worker's link slows down TCP-like transports, but not DLCP.",
    "reliable transports degrade at 0.1 to 1 %, bounded loss holds",
    gray_settings(("dlcp", *DCTCP)),
    (*expect_unchanged("dlcp", "DLCP"), *expect_slower(DCTCP)),
    "iteration",
)

SPRAY, LAYERS, BOUNDED, CHOSEN = (
    "spraying: uplinks just enough",
    "layer priority: servers' links just enough",
    "bounded loss: fan-in 16",
    "selective drop: what is lost",
)
S9_JOB: Json = {"job": {"iterations": 3}}


def _costs(setting: str, arm: str, measure: str = "iteration") -> Any:
    return lambda at: at(setting, arm, measure) / at(setting, "dlcp", measure) - 1


S9 = Claim(
    "S9",
    "[notes] ablation; limits [ours]",
    "Each mechanism of DLCP contributes.",
    "spraying, queueing and dropping, and loss tolerance each contribute",
    (
        Setting(SPRAY, "demo-cpu", ("dlcp", "dlcp-ecmp"), S9_JOB),
        Setting(LAYERS, "demo-cpu", ("dlcp", "dlcp-fifo"), {"job": {"iterations": 3, "workers": 8}}),
        Setting(BOUNDED, "incast-mix", ("dlcp", "dlcp-lossless"), burst(16, "1MB", 10), shown="mean"),
        Setting(
            CHOSEN,
            "demo-cpu",
            ("dlcp-chosen", "dlcp-chosen-no-drop"),
            {"job": {"iterations": 3, "workers": 8}},
            shown="magnitude",
        ),
    ),
    (
        Expect(
            "iteration longer without spraying",
            _costs(SPRAY, "dlcp-ecmp"),
            (SPRAY,),
            low=0.05,
            unit="share",
            condition="spraying",
        ),
        Expect(
            "iteration longer without layer priority",
            _costs(LAYERS, "dlcp-fifo"),
            (LAYERS,),
            low=0.05,
            unit="share",
            condition="layer priority",
        ),
        Expect(
            "mean completion longer without bounded loss",
            _costs(BOUNDED, "dlcp-lossless", "mean"),
            (BOUNDED,),
            low=0.05,
            unit="share",
            condition="bounded loss",
        ),
        Expect(
            "mean |g| of what is lost, more without selective drop",
            lambda at: at(CHOSEN, "dlcp-chosen-no-drop", "magnitude") / at(CHOSEN, "dlcp-chosen", "magnitude") - 1,
            (CHOSEN,),
            low=0.05,
            unit="share",
            condition="selective drop",
        ),
    ),
    "iteration",
    "Selective drop determines which packets are lost and not how many: its measure is the mean |g| of lost gradients "
    "over that of their tensors; 1 is loss at random. It is measured where the losses are exactly the drops of "
    "switches: all packets are sent in order, and bytes alone decide. With our defaults senders send droppable packets "
    "last and receivers wait for the important ones, so that losses are the same with and without selective drop.",
)


HEAVY = tuple(
    Setting(setting.name, setting.scenario, ("dlcp",), setting.changes)
    for setting in (S1.settings[1], S4.settings[2], S8.settings[3])
)
"""Settings of other claims in which DLCP loses much."""

S10 = Claim(
    "S10",
    "[ours] an invariant, from the transport's description [notes]",
    "No message is delivered with more loss than its bound.",
    "loss <= p for every message",
    HEAVY,
    (
        *(
            Expect(
                "bounds broken",
                measure_of(setting.name, "dlcp", "broken"),
                (setting.name,),
                high=0.0,
                unit="count",
                condition=setting.name,
            )
            for setting in HEAVY
        ),
        *(
            Expect(
                "loss as a share of what is allowed, largest",
                measure_of(setting.name, "dlcp", "worst"),
                (setting.name,),
                high=1.0,
                condition=setting.name,
            )
            for setting in HEAVY
        ),
    ),
    "worst",
)
