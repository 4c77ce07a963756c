"""Declares the preconditions under which keys of [switch] and [host] have an effect (see
`gradwire.scenarios.schema.effect_conditions`).
"""

from __future__ import annotations

from gradwire.scenarios.schema.effect_conditions import Precondition, TableContext
from gradwire.scenarios.schema.network.per_queue import OneForAll


def _is_marking(at: TableContext) -> bool:
    """Return True if packets above an ECN threshold may be marked or selectively dropped."""
    if at.switch.selective_drop or not at.scenario.senders:  # programs are unknown
        return True
    return any(
        ":" in transport.kind or transport.ecn_capable or transport.control_ecn_capable for _, transport in at.carried()
    )


def _is_droppable(at: TableContext) -> bool:
    """Return True if some packets are not ECN-capable, so that switches may drop them selectively."""
    if not at.scenario.senders:  # programs are unknown
        return True
    for sender, transport in at.carried():
        if ":" in transport.kind or not (transport.ecn_capable and transport.control_ecn_capable):
            return True
        if getattr(sender, "droppable", False) or (hasattr(sender, "tagging") and sender.tagging.magnitude):
            return True
    return False


def _several_classes(at: TableContext) -> bool:
    """Return True if packets may wait in more than one queue."""
    classes = at.classes()
    return classes is None or len({min(each, at.switch.queues - 1) for each in classes}) > 1


def _more_queues(at: TableContext) -> bool:
    """Return True if a number of queues other than the default may send packets to other queues."""
    classes = at.classes()
    if classes is None or max(classes) >= at.switch.queues or ":" in (at.switch.policy or ""):
        return True
    lists = (at.switch.ecn_threshold, at.switch.buffer_share, at.switch.drr_quantum)  # of one value per queue
    return any(each is not None and not isinstance(each, OneForAll) for each in lists)


SEVERAL_CLASSES = Precondition(
    _several_classes,
    "all packets are of one class",
    "packets of several classes, such as by job.tagging.layer_priority",
)
MORE_QUEUES = Precondition(
    _more_queues, "no packet uses a queue beyond these", "packets of higher classes, such as by job.tagging.priorities"
)
SEVERAL_SWITCHES = Precondition(
    lambda at: at.scenario.topology.size is None or at.scenario.topology.size[0] > 1,
    "there is one switch",
    "a topology with several switches",
)
ALL_PAUSED = Precondition(
    lambda at: bool(at.switch.queue_capacities()),
    "pfc replaces the buffer limit of every queue",
    "switch.pfc_classes without some queue",
)
SHARED = Precondition(lambda at: at.switch.shared_buffer is not None, "no buffer is shared", "switch.shared_buffer")
OWN_BUFFER = Precondition(
    lambda at: at.switch.shared_buffer is None, "shared_buffer replaces it", "no switch.shared_buffer"
)
RAMP = Precondition(lambda at: at.switch.ecn_ceiling is not None, "marking is not random", "switch.ecn_ceiling")
TRIMS = Precondition(
    lambda at: at.switch.trim_threshold is not None, "switches trim no packets", "switch.trim_threshold"
)
PAUSES = Precondition(lambda at: at.switch.pfc, "switches send no pauses", "switch.pfc = true")
SUMS = Precondition(
    lambda at: bool(at.switch.aggregation_slots) and any(job.exchange.aggregates for job in at.scenario.job),
    "no switch sums packets",
    "switch.aggregation_slots, and an exchange with aggregation",
)
SEVERAL_GPUS = Precondition(lambda at: at.scenario.host.gpus > 1, "a host has one accelerator", "host.gpus above 1")
FLOWLETS = Precondition(
    lambda at: at.scenario.load_balancing.startswith("flowlet") or ":" in at.scenario.load_balancing,
    "packets are not balanced by flowlets",
    'load_balancing = "flowlet" or "flowlet_least_queue"',
)
MARKS = Precondition(_is_marking, "no packet is ECN-capable, and none is selectively dropped", "a transport with ECN")
DROPPABLE = Precondition(
    _is_droppable, "no packet is droppable", "job.tagging.magnitude, traffic.droppable, or a transport without ECN"
)
