"""Bindings of the compiled steps to one queue policy, one load balancer and a set of transports.

This module defines the interface and a default (DCTCP over ECMP). For a run, `gradwire.sim.engine.specialization`
writes a module of the same shape that dispatches over the transports of the scenario, in place of this one.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import H_PARAMS, PARAM_WORDS, R_KIND, S_KIND, SET_SHIFT
from gradwire.protocols.load_balancers.base import heard, pick
from gradwire.protocols.load_balancers.ecmp import choose
from gradwire.protocols.queues.threshold import admit
from gradwire.protocols.transports.common import delayed_acks, window
from gradwire.protocols.transports.tcp import dctcp

SHARED = False  # the ports of a switch share its buffer
LIMITS = False  # every class may fill only a part of the buffer
DRR = False  # deficit round robin: some classes of a port take turns
TRIMMING = False  # packets are cut to their headers
PFC = False  # priority flow control
SRPT = False  # shortest remaining processing time: within a class the message with the least left goes first
FAULTS = False  # hosts may stop, routes may be missing
DELAYS = False  # waiting times are counted
STREAMS = False  # connections may carry several messages
ACK_DELAY = False  # receivers may delay their answers
RIDES = False  # data packets carry their sender's S_RIDER
INT = False  # in-band telemetry: switches write the state of their ports into packets
PULLS = False  # receivers pace their senders
AGGREGATION = False  # switches sum packets of many hosts for one, and copy one for many
PAIRS = False  # messages between two hosts share a pace
HOST_QUEUES = False  # packets of some flows wait at the NIC
SEES_QUEUES = False  # the balancer reads the queues of the ports it chooses from
HOST_PATHS = False  # hosts choose the entropy of every packet
SOURCE_ROUTES = False  # switches consume the entropy digit by digit


@njit
def _parameters(M, word):
    """Return the parameter set that a record's word names."""
    return M[H_PARAMS] + (M[word] >> SET_SHIFT) * PARAM_WORDS


@njit
def start(M, f, now):
    """Let the message of sender `f` enter the host."""
    dctcp.start(M, _parameters(M, f + S_KIND), f, now)


@njit
def pull(M, f, now):
    """Return the next packet that sender `f` puts on the wire at `now`: its sequence number, BLOCKED, or a probe."""
    return dctcp.pull(M, _parameters(M, f + S_KIND), f, now)


@njit
def on_control(M, f, kind, sequence, argument, echo, now):
    """Handle a control packet that reaches sender `f`."""
    dctcp.on_control(M, _parameters(M, f + S_KIND), f, kind, sequence, argument, echo, now)


@njit
def on_timer(M, f, now):
    """Handle the expiry of the time in S_TIMER of sender `f`."""
    dctcp.on_timer(M, _parameters(M, f + S_KIND), f, now)


@njit
def at_nic(M, f, nbytes):
    """Count bytes of sender `f` that wait at the NIC, fewer if negative. Returns 0 if its packets take turns."""
    return 0


@njit
def on_data(M, r, sequence, size, ce, now):
    """Handle a data packet with `size` bytes of payload at receiver `r`. Returns its answer, 0 for none."""
    return delayed_acks.on_data_alike(M, _parameters(M, r + R_KIND), r, sequence, size, ce, now)


@njit
def on_probe(M, r, argument, now):
    """Handle a probe at receiver `r`. Returns its answer, 0 for none."""
    return dctcp.on_probe(M, _parameters(M, r + R_KIND), r, argument, now)


@njit
def on_trimmed(M, r, sequence, now):
    """Handle the header of a trimmed data packet at receiver `r`. Returns its answer, 0 for none."""
    return 0


@njit
def on_late(M, r, now):
    """Handle the expiry of the time in R_TIMER of receiver `r`. Returns its answer to the last packet, 0 for none."""
    return delayed_acks.on_late(M, _parameters(M, r + R_KIND), r, now)


@njit
def resume(M, f, now):
    """Resume stream `f`, which has more to send after all of it was acknowledged."""
    window.resume(M, _parameters(M, f + S_KIND), f, now)


@njit
def forget(M, f, packets):
    """Drop the first `packets` packets of stream `f` from the sender's numbering."""
    dctcp.forget(M, _parameters(M, f + S_KIND), f, packets)


@njit
def forget_received(M, r, packets):
    """Drop the first `packets` packets of a stream from the numbering of its receiver `r`."""
    delayed_acks.forget_received(M, _parameters(M, r + R_KIND), r, packets)


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
]
