"""Functions compute the figures that claims expect (ratios, gains, savings) from the measures of one seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import isinf
from typing import Any

from gradwire.studies.reproduce.claim import At

Value = Callable[[At], float]


def figure(setting: str, policy: str, measure: str, per: float = 1.0) -> Value:
    """Return a measure, divided by a number."""
    return lambda at: at(setting, policy, measure) / per


def ratio(setting: str, policy: str, to: str, measure: str, measure_of_other: str = "") -> Value:
    """Return a policy's figure over that of another one."""
    return lambda at: at(setting, policy, measure) / at(setting, to, measure_of_other or measure)


def difference(setting: str, policy: str, than: str, measure: str = "accuracy") -> Value:
    """Return a policy's figure minus that of another one, of the same seed."""
    return lambda at: at(setting, policy, measure) - at(setting, than, measure)


def gain(setting: str, policy: str, over: str, measure: str = "iteration") -> Value:
    """Return the speed gain: the other policy's time over the policy's, minus one (0.84 is "84 % faster")."""
    return lambda at: at(setting, over, measure) / at(setting, policy, measure) - 1


def gain_over_best(setting: str, policy: str, rivals: list[str], measure: str = "iteration") -> Value:
    """Return the speed gain over the fastest of several policies, chosen seed by seed. Rivals that were not run count
    as slower, since the testbed does not have all of them."""
    return lambda at: _best(at, [setting], rivals, measure) / at(setting, policy, measure) - 1


def _best(at: At, settings: list[str], policies: list[str], measure: str) -> float:
    """Return the smallest figure of several policies in several settings. Raises `KeyError` if there is none."""
    figures = []
    for setting in settings:
        for policy in policies:
            with suppress(KeyError):
                figures.append(at(setting, policy, measure))
    if not figures:
        raise KeyError(policies)
    return min(figures)


def gain_at_best(*arguments: Any) -> Value:
    """Return the speed gain over the fastest of several policies, each side in its best setting, seed by seed.
    `arguments`: the settings, the policy, and a list of its rivals."""
    *settings, policy, rivals = arguments

    return lambda at: _best(at, settings, rivals, "iteration") / _best(at, settings, [policy], "iteration") - 1


def gain_growth(small: str, large: str, policy: str, over: str, measure: str = "iteration") -> Value:
    """Return the gain in setting `large` minus that in `small`."""
    return lambda at: gain(large, policy, over, measure)(at) - gain(small, policy, over, measure)(at)


def saved(setting: str, policy: str, over: str, measure: str = "iteration") -> Value:
    """Return the share of the other policy's time that is saved (0.9 is "-90 %")."""
    return lambda at: 1 - at(setting, policy, measure) / at(setting, over, measure)


def saved_more(setting: str, policy: str, over: str, measure: str, than: str) -> Value:
    """Return the share saved of one measure minus that of another one."""
    return lambda at: saved(setting, policy, over, measure)(at) - saved(setting, policy, over, than)(at)


def saved_or_not(setting: str, arm: str, over: str, measure: str) -> Value:
    """Return the share of another arm's figure that is saved. It is minus infinity if only the other arm reaches the
    accuracy, and zero if neither does."""
    return lambda at: _share_saved(at(setting, arm, measure), at(setting, over, measure))


def saved_at_share(setting: str, arm: str, over: str, rate: str, base: str, share: float) -> Value:
    """Return the share of another arm's time that is saved to a share of a third arm's final accuracy.

    The accuracy is that of `base`, rounded to a percent. A time is steps times that of a step at a link rate; infinite
    ones count as in `saved_or_not`.
    """

    def value(at: At) -> float:
        percent = round(100 * share * at(setting, base, "accuracy"))
        times = [at(setting, key, f"steps_to@{percent}") * at(setting, key, f"step_{rate}") for key in (arm, over)]
        return _share_saved(*times)

    return value


def saved_by_clock(setting: str, clock: str, arm: str, baseline: str, over: str) -> Value:
    """Return the share of the time to the accuracy that is saved against an arm. The arm trains like the baseline, with
    its own time of a step, from the setting `clock`."""
    return lambda at: _share_saved(at(setting, arm, "to"), at(setting, baseline, "steps_to") * at(clock, over, "clock"))


def _share_saved(mine: float, theirs: float) -> float:
    if isinf(theirs):
        return 0.0 if isinf(mine) else 1.0
    return 1 - mine / theirs


def ratio_to_setting(base: str, setting: str, policy: str, measure: str) -> Value:
    """Return a policy's figure in a setting over that in another one."""
    return lambda at: at(setting, policy, measure) / at(base, policy, measure)


def saved_by_setting(base: str, setting: str, policy: str, measure: str) -> Value:
    """Return the share of a policy's figure that a setting saves."""
    return lambda at: 1 - ratio_to_setting(base, setting, policy, measure)(at)


def growth_by_setting(base: str, setting: str, policy: str, measure: str) -> Value:
    """Return the increase of a policy's figure in a setting, as a share."""
    return lambda at: ratio_to_setting(base, setting, policy, measure)(at) - 1


def speed_up(setting: str, policy: str, alone_ps: float, per: float = 1.0) -> Value:
    """Return the time on one node over that of an iteration, divided by a number."""
    return lambda at: alone_ps / at(setting, policy, "iteration") / per


def efficiency_ratio(few: str, many: str, policy: str, alone_ps: float, few_nodes: int, many_nodes: int) -> Value:
    """Return the speed-up per node on many nodes over that on few."""
    on_few, on_many = speed_up(few, policy, alone_ps, few_nodes), speed_up(many, policy, alone_ps, many_nodes)
    return lambda at: on_many(at) / on_few(at)


VALUES: dict[str, tuple[Callable[..., Value], str]] = {
    "figure": (figure, "ratio"),
    "ratio": (ratio, "ratio"),
    "difference": (difference, "points"),
    "gain": (gain, "share"),
    "gain over best": (gain_over_best, "share"),
    "gain at best": (gain_at_best, "share"),
    "gain growth": (gain_growth, "share"),
    "saved": (saved, "share"),
    "saved more": (saved_more, "share"),
    "saved or not": (saved_or_not, "share"),
    "saved by clock": (saved_by_clock, "share"),
    "saved at share": (saved_at_share, "share"),
    "ratio to setting": (ratio_to_setting, "ratio"),
    "saved by setting": (saved_by_setting, "share"),
    "growth by setting": (growth_by_setting, "share"),
    "speed-up": (speed_up, "ratio"),
    "efficiency ratio": (efficiency_ratio, "ratio"),
}
"""Function and default unit by name."""
