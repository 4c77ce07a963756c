"""Binding: what the compiled steps are bound to, one queue policy, one load balancer, a set of transports.

This module is the contract and a default (DCTCP over ECMP). For a run, `gradwire.sim.fabric.specialise` writes a module
of the same shape that dispatches over the transports of the scenario, in the place of this one.
"""

from gradwire.components.balancers.base import heard, pick
from gradwire.components.balancers.ecmp import choose
from gradwire.components.compiled import njit
from gradwire.components.layout import H_PARAMS, PARAM_WORDS, R_KIND, S_KIND, SET_SHIFT
from gradwire.components.queues.threshold import admit
from gradwire.components.transports import acknowledgements, dctcp, window

SHARED = False  # the ports of a switch share its buffer
LIMITS = False  # every class may fill a part of the buffer only
DRR = False  # deficit round robin: some classes of a port take turns
TRIMMING = False  # packets are cut to their headers
PFC = False  # priority flow control
SRPT = False  # shortest remaining processing time: within a class the message with the least left goes first
FAULTS = False  # hosts may stand still, routes may be missing
DELAYS = False  # waiting times are counted
STREAMS = False  # connections may carry message after message
ACK_DELAY = False  # receivers may put off their answers
RIDES = False  # data packets carry their sender's S_RIDER
INT = False  # in-band telemetry: switches write about their ports into packets
PULLS = False  # receivers pace their senders
AGGREGATION = False  # switches sum up packets of many hosts for one, and make many of one
PAIRS = False  # messages between two hosts share a pace
HOST_QUEUES = False  # packets of some flows wait at the NIC
SEES_QUEUES = False  # the balancer looks at the queues of the ports it chooses from
HOST_PATHS = False  # hosts choose the entropy of every packet
SOURCE_ROUTES = False  # switches use up the entropy digit by digit


@njit
def _parameters(M, word):
    """The parameter set that a record's word names."""
    return M[H_PARAMS] + (M[word] >> SET_SHIFT) * PARAM_WORDS


@njit
def start(M, f, now):
    """The message of sender `f` enters the host."""
    dctcp.start(M, _parameters(M, f + S_KIND), f, now)


@njit
def pull(M, f, now):
    """The next packet that sender `f` puts on the wire at `now`: its sequence number, BLOCKED, or a probe."""
    return dctcp.pull(M, _parameters(M, f + S_KIND), f, now)


@njit
def on_control(M, f, kind, sequence, argument, echo, now):
    """A control packet reaches sender `f`."""
    dctcp.on_control(M, _parameters(M, f + S_KIND), f, kind, sequence, argument, echo, now)


@njit
def on_timer(M, f, now):
    """The time in S_TIMER of sender `f` has come."""
    dctcp.on_timer(M, _parameters(M, f + S_KIND), f, now)


@njit
def at_nic(M, f, nbytes):
    """So many bytes more of sender `f` wait at the NIC, fewer if negative. Returns 0 if its packets take turns."""
    return 0


@njit
def on_data(M, r, sequence, size, ce, now):
    """A data packet with `size` bytes of payload reaches receiver `r`. Returns its answer, 0 for none."""
    return acknowledgements.on_data_alike(M, _parameters(M, r + R_KIND), r, sequence, size, ce, now)


@njit
def on_probe(M, r, argument, now):
    """A probe reaches receiver `r`. Returns its answer, 0 for none."""
    return dctcp.on_probe(M, _parameters(M, r + R_KIND), r, argument, now)


@njit
def on_trimmed(M, r, sequence, now):
    """The header of a data packet reaches receiver `r`. Returns its answer, 0 for none."""
    return 0


@njit
def on_late(M, r, now):
    """The time in R_TIMER of receiver `r` has come. Returns its answer to the last data packet, 0 for none."""
    return acknowledgements.on_late(M, _parameters(M, r + R_KIND), r, now)


@njit
def resume(M, f, now):
    """Stream `f`, all of which has been acknowledged, has more to send."""
    window.resume(M, _parameters(M, f + S_KIND), f, now)


@njit
def forget(M, f, packets):
    """The first `packets` packets of stream `f` are counted no more at its sender."""
    dctcp.forget(M, _parameters(M, f + S_KIND), f, packets)


@njit
def forget_received(M, r, packets):
    """The same at the receiver `r` of a stream."""
    acknowledgements.forget_received(M, _parameters(M, r + R_KIND), r, packets)


__all__ = [
    "ACK_DELAY",
    "AGGREGATION",
    "DELAYS",
    "DRR",
    "FAULTS",
    "HOST_PATHS",
    "HOST_QUEUES",
    "INT",
    "PAIRS",
    "PFC",
    "PULLS",
    "RIDES",
    "SEES_QUEUES",
    "SHARED",
    "SOURCE_ROUTES",
    "SRPT",
    "STREAMS",
    "TRIMMING",
    "admit",
    "at_nic",
    "choose",
    "forget",
    "forget_received",
    "heard",
    "on_control",
    "on_data",
    "on_late",
    "on_probe",
    "on_timer",
    "on_trimmed",
    "pick",
    "pull",
    "resume",
    "start",
]  # fmt: skip
