"""Needs of the keys of [switch] and [host] (see `gradwire.scenarios.schema.effect_conditions`)."""

from __future__ import annotations

from gradwire.scenarios.schema.effect_conditions import Needs, Situation
from gradwire.scenarios.schema.per_queue import OneForAll


def _is_limited(at: Situation) -> bool:
    """Return True if a buffer holds packets of some queue back."""
    return bool(at.switch.rooms())


def _sums(at: Situation) -> bool:
    return bool(at.switch.aggregation_slots) and any(job.exchange.aggregates for job in at.scenario.job)


def _is_marking(at: Situation) -> bool:
    """Return True if packets may come above an ECN threshold that are marked, or dropped by choice."""
    if at.switch.selective_drop or not at.scenario.senders:  # of programs nothing is known
        return True
    return any(
        ":" in transport.kind or transport.ecn_capable or transport.control_ecn_capable
        for _, transport in at.carried()
    )


def _is_droppable(at: Situation) -> bool:
    """Return True if some packets are not ECN-capable, so that switches may drop them by choice."""
    if not at.scenario.senders:  # of programs nothing is known
        return True
    for sender, transport in at.carried():
        if ":" in transport.kind or not (transport.ecn_capable and transport.control_ecn_capable):
            return True
        if getattr(sender, "droppable", False) or (hasattr(sender, "tagging") and sender.tagging.magnitude):
            return True
    return False


def _several_classes(at: Situation) -> bool:
    """Return True if packets may wait in more than one queue."""
    classes = at.classes()
    return classes is None or len({min(each, at.switch.queues - 1) for each in classes}) > 1


def _more_queues(at: Situation) -> bool:
    """Return True if the number of queues, where it is not the default, may send packets to other ones."""
    classes = at.classes()
    if classes is None or max(classes) >= at.switch.queues or ":" in (at.switch.policy or ""):
        return True
    lists = (at.switch.ecn_threshold, at.switch.buffer_share, at.switch.drr_quantum)  # that fit so many
    return any(each is not None and not isinstance(each, OneForAll) for each in lists)


SEVERAL_CLASSES = Needs(
    _several_classes, "all packets are of one class",
    "packets of several classes, such as by job.tagging.layer_priority",
)
MORE_QUEUES = Needs(
    _more_queues, "packets go to no queue beyond these", "packets of higher classes, such as by job.tagging.priorities"
)
SEVERAL_SWITCHES = Needs(
    lambda at: at.scenario.topology.size is None or at.scenario.topology.size[0] > 1, "there is one switch",
    "a topology with several switches",
)
ALL_PAUSED = Needs(
    _is_limited, "pfc holds no packet of any queue back by a buffer", "switch.pfc_classes without some queue"
)
SHARED = Needs(lambda at: at.switch.shared_buffer is not None, "no buffer is shared", "switch.shared_buffer")
OWN_BUFFER = Needs(
    lambda at: at.switch.shared_buffer is None, "shared_buffer takes its place", "no switch.shared_buffer"
)
RAMP = Needs(lambda at: at.switch.ecn_ceiling is not None, "marking does not rise by chance", "switch.ecn_ceiling")
TRIMS = Needs(lambda at: at.switch.trim_threshold is not None, "switches trim no packets", "switch.trim_threshold")
PAUSES = Needs(lambda at: at.switch.pfc, "switches pause nobody", "switch.pfc = true")
SUMS = Needs(_sums, "no switch sums packets", "switch.aggregation_slots, and an exchange with aggregation")
SEVERAL_GPUS = Needs(lambda at: at.scenario.host.gpus > 1, "a host has one accelerator", "host.gpus above 1")
FLOWLETS = Needs(
    lambda at: at.scenario.load_balancing.startswith("flowlet") or ":" in at.scenario.load_balancing,
    "packets are not balanced by flowlets", 'load_balancing = "flowlet" or "flowlet_least_queue"',
)
MARKS = Needs(_is_marking, "no packet is ECN-capable, and none is dropped by choice", "a transport with ECN")
DROPPABLE = Needs(
    _is_droppable, "no packet is droppable", "job.tagging.magnitude, traffic.droppable, or a transport without ECN"
)
