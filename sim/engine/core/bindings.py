"""Declares the compiled engine's interface to queue policy, load balancer and transports, with defaults;
`gradwire.sim.engine.specialization` writes a run's version.

The default is DCTCP over ECMP. For a run, `gradwire.sim.engine.specialization` writes a module of the same shape that
dispatches over the transports of the scenario, in place of this one.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.constants import SET_SHIFT
from gradwire.jit.records.flows import Parameters, Receiver, Sender
from gradwire.jit.records.header import State
from gradwire.jit.records.network import Port, QueueClass, Switch
from gradwire.protocols.load_balancers import base, ecmp
from gradwire.protocols.queues import threshold
from gradwire.protocols.transports.common import delayed_acks, window
from gradwire.protocols.transports.common.window import WindowFlow, WindowParameters, WindowReceiver
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
RIDES = False  # data packets carry their sender's piggyback
INT = False  # in-band telemetry: switches write the state of their ports into packets
PULLS = False  # receivers pace their senders
AGGREGATION = False  # switches sum packets of many hosts for one, and copy one for many
PAIRS = False  # messages between two hosts share a pace
HOST_QUEUES = False  # packets of some flows wait at the NIC
SEES_QUEUES = False  # the balancer reads the queues of the ports it chooses from
HOST_PATHS = False  # hosts select the entropy of every packet
SOURCE_ROUTES = False  # switches consume the entropy digit by digit


@njit
def _parameters(state: State, kind: int) -> WindowParameters:
    """Return the parameter set that the kind of a record names."""
    return WindowParameters(state, state.parameter_sets + (kind >> SET_SHIFT) * Parameters.WORDS)


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return the index of the next hop of a packet at a switch; `next_hops`: bases of the ports."""
    return ecmp.select(switch, next_hops, hop_count, header, body, draws, now)


@njit
def pick_path(flow: Sender, draws: int) -> int:
    """Return the path entropy of the next data packet of a sender, which has sent `draws` packets."""
    return base.pick_path(flow, draws)


@njit
def on_feedback(flow: Sender, kind: int, entropy: int, echo: int, now: int) -> None:
    """Handle the path entropy that an answer to a sender returns."""
    base.on_feedback(flow, kind, entropy, echo, now)


@njit
def admit(port: Port, waiting: QueueClass, header: int) -> int:
    """Return the verdict of the queue policy on a packet for one class of a port."""
    return threshold.admit(port, waiting, header)


@njit
def start(flow: Sender, now: int) -> None:
    """Let the message of a sender enter the host."""
    dctcp.start(_parameters(flow.state, flow.kind), WindowFlow(flow, flow.base), now)


@njit
def pull(flow: Sender, now: int) -> int:
    """Return the next packet that a sender puts on the wire at `now`: its sequence number, BLOCKED, or a probe."""
    return dctcp.pull(_parameters(flow.state, flow.kind), WindowFlow(flow, flow.base), now)


@njit
def on_control(flow: Sender, kind: int, sequence: int, argument: int, echo: int, now: int) -> None:
    """Handle a control packet that reaches a sender."""
    parameters = _parameters(flow.state, flow.kind)
    dctcp.on_control(parameters, WindowFlow(flow, flow.base), kind, sequence, argument, echo, now)


@njit
def on_timer(flow: Sender, now: int) -> None:
    """Handle the expiry of a sender's timer."""
    dctcp.on_timer(_parameters(flow.state, flow.kind), WindowFlow(flow, flow.base), now)


@njit
def at_nic(flow: Sender, nbytes: int) -> int:
    """Count bytes of a sender that wait at the NIC, fewer if negative. Returns 0 if its packets take turns."""
    return 0


@njit
def on_data(receiver: Receiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Handle a data packet with `size` bytes of payload at a receiver. Returns its answer, 0 for none."""
    parameters = _parameters(receiver.state, receiver.kind)
    window_receiver = WindowReceiver(receiver, receiver.base)
    return delayed_acks.on_data_alike(parameters, window_receiver, sequence, size, ce, now)


@njit
def on_probe(receiver: Receiver, argument: int, now: int) -> int:
    """Handle a probe at a receiver. Returns its answer, 0 for none."""
    return dctcp.on_probe(
        _parameters(receiver.state, receiver.kind), WindowReceiver(receiver, receiver.base), argument, now
    )


@njit
def on_trimmed(receiver: Receiver, sequence: int, now: int) -> int:
    """Handle the header of a trimmed data packet at a receiver. Returns its answer, 0 for none."""
    return 0


@njit
def on_late(receiver: Receiver, now: int) -> int:
    """Handle the expiry of a receiver's timer. Returns its answer to the last packet, 0 for none."""
    return delayed_acks.on_late(
        _parameters(receiver.state, receiver.kind), WindowReceiver(receiver, receiver.base), now
    )


@njit
def resume(flow: Sender, now: int) -> None:
    """Resume a stream, which has more to send after all of it was acknowledged."""
    window.resume(_parameters(flow.state, flow.kind), WindowFlow(flow, flow.base), now)


@njit
def forget(flow: Sender, packets: int) -> None:
    """Drop the first `packets` packets of a stream from the sender's numbering."""
    dctcp.forget(_parameters(flow.state, flow.kind), WindowFlow(flow, flow.base), packets)


@njit
def forget_received(receiver: Receiver, packets: int) -> None:
    """Drop the first `packets` packets of a stream from the numbering of its receiver."""
    delayed_acks.forget_received(
        _parameters(receiver.state, receiver.kind), WindowReceiver(receiver, receiver.base), packets
    )


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
    "forget",
    "forget_received",
    "on_control",
    "on_data",
    "on_feedback",
    "on_late",
    "on_probe",
    "on_timer",
    "on_trimmed",
    "pick_path",
    "pull",
    "resume",
    "select",
    "start",
]
