"""What is known of a step of a program that is played, or was."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.experiment.program import Ints, Step

NOTES = 5
"""Columns of `notes`: the four times that a process notes, and the time spent computing."""


class Over(NamedTuple):
    """What is kept of a step.

    numbers : int64[messages], the network's; -1 where it has none yet.
    ready : int64[messages], picoseconds: when its host had it ready; -1: not yet.
    started : int64[messages], picoseconds: when it enters its host's NIC, -1 where that is not known yet.
    notes : int64[processes, NOTES], picoseconds; -1: not yet.
    """

    step: Step
    numbers: Ints
    ready: Ints
    started: Ints
    notes: Ints
