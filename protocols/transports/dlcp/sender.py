"""Implements DLCP's sender, which orders packets in passes, probes for missing ones, and retransmits until Stop.

A message is sent in passes: the first one, and one for the missing packets of each Bitmap. Each walks through the
packets in the order of the message:

* `important_first`: the important packets, then the droppable ones, each starting at a droppable packet that rotates
  from iteration to iteration (by `flow.turn`, from a seeded start). The end of the order is what a bound forgives; if
  packets were sent from first to last, the same tail of every tensor would stay untrained in each step. In n
  consecutive messages each of n droppable packets is the last one once, and among the last k of them k times; the steps
  are near the golden section of n, so that fewer messages also spread well while the same packets are droppable;
* `sequential`: from the first to the last;
* `random`: an arithmetic progression modulo the number of packets, drawn for each message.

A pass ends after its quota. With `stop_policy = "early"` the quota is what the message needs to be delivered: a Stop
that is sent when enough has arrived reaches the sender a round trip too late, when at line rate all the rest has left
already. Other policies send everything. An important packet that must arrive is never left out for a droppable one.

States of the sender, `probe_state` (n: the number of parts of the answer that are still to come):

| state | event | action | next state |
|---|---|---|---|
| IDLE | `pull` finds no packet left in the pass | set the timer to half a smoothed round trip | QUIET |
| IDLE | timer expires while midway WAITING | midway becomes ASKED | DUE |
| QUIET | acknowledgement | set the timer anew | QUIET |
| QUIET | timer expires | | DUE |
| DUE | `pull` | send a probe with a new number for everything; set the timer | n = all parts |
| n > 0 | awaited part of a Bitmap | store it; restart the timer, if no repetition is under way | n - 1 |
| n > 0 | `pull` after the timer expired | repeat the probe, or request each missing part; double the wait | n |
| 1 | last awaited part, midway ASKED | stop the timer; midway becomes ANSWERED_MIDWAY | IDLE |
| 1 | last awaited part, else | stop the timer; begin a pass over the missing packets | IDLE |
| any | Stop | stop the timer; the flow is done | |

The query about important packets in the middle of the first pass, `midway_state`:

| state | event | action | next state |
|---|---|---|---|
| NOT_YET | the first pass has sent its important packets (`important_first` with tags) | | REACHED |
| REACHED | `pull` returns the next packet | set the timer to half a smoothed round trip | WAITING |
| WAITING | timer expires while `probe_state` is IDLE | make a probe due | ASKED |
| WAITING | the pass ends first | the probe at its end replaces the query | WAITING |
| ASKED | last awaited part | retransmit the important packets it lacks, then resume the pass | ANSWERED_MIDWAY |

While ASKED, `pull` continues the pass between the probe and its answer.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import BITMAP, BLOCKED, PULL_PROBE, STOP
from gradwire.jit.records.packets import entropy_of
from gradwire.protocols.transports.base import IMPORTANT_FLAG, bit, clear_bit, set_bit
from gradwire.protocols.transports.dlcp.rate_control import (
    begin,
    detect_lost_sample,
    on_acknowledgement,
    on_rtt_sample,
    silence,
    smoothed,
)
from gradwire.protocols.transports.dlcp.records import (
    ANSWERED_MIDWAY,
    ASKED,
    EARLY,
    IMPORTANT_FIRST,
    RANDOM,
    REACHED,
    WAITING,
    DlcpFlow,
    DlcpParameters,
)

ANSWER_WORDS = 256  # bitmap words in one Bitmap packet: 8192 packets in 1 KiB
# The argument of probes and Bitmaps is the number of the probe, modulo 4096, and above it the requested part, counted
# from 1, or EVERYTHING.
NUMBER_BITS = 12
NUMBERS = (1 << NUMBER_BITS) - 1  # mask
EVERYTHING = 0
LONGEST = 24  # base round trips before a probe is repeated, at most
IDLE = 0
QUIET = -1  # everything is sent: a probe follows after a silence
DUE = -2  # a probe is to be sent now


# --- the order of packets --------------------------------------------------------------------------------------------


@njit
def ones(word: int) -> int:
    """Return the number of bits set in a 32-bit word."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return (((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24) & 0xFF


@njit
def _gcd(a: int, b: int) -> int:
    """Return the greatest common divisor."""
    while b:
        remainder = a % b
        a = b
        b = remainder
    return a


@njit
def _begin_pass(params: DlcpParameters, flow: DlcpFlow, arrived: int, missing: int, urgent: int) -> None:
    """Begin a pass: `arrived` packets have arrived, `missing` have not, `urgent` of them important."""
    if params.important_must_arrive == 0:
        urgent = 0
    quota = missing
    if params.stop_policy == EARLY:
        quota = min(missing, max(flow.needed - arrived, urgent, 1))
    flow.quota = quota
    flow.urgent = urgent
    flow.position = 0
    flow.droppable_phase = 0


@njit
def _first_packet(flow: DlcpFlow, packets: int, droppable: int) -> int:
    """Return the first packet in a message's order: the next droppable one in rotation, or any if there are no tags."""
    if droppable == 0:
        return 0
    step = max(droppable * 0x9E37 >> 16, 1)
    while _gcd(step, droppable) != 1:
        step += 1
    rank = flow.turn * step % droppable  # among the droppable packets
    tags = flow.tag_bits
    if flow.tags <= 1:
        return rank
    sequence = 0
    while ones(~tags[sequence >> 5] & 0xFFFFFFFF) <= rank:
        rank -= ones(~tags[sequence >> 5] & 0xFFFFFFFF)
        sequence += 32
    while True:
        if bit(tags, sequence) == 0:
            if rank == 0:
                return sequence
            rank -= 1
        sequence += 1


@njit
def first_pass(params: DlcpParameters, flow: DlcpFlow) -> None:
    """Begin the message: compute its order and the packets it needs."""
    packets = flow.packets
    random = entropy_of(flow.data_header)
    flow.order_stride = 1
    if params.send_order == RANDOM:
        flow.order_offset = random * packets >> 16
        stride = 1 + (random * 0x9E37 & 0xFFFF) * packets // 0x10000
        while _gcd(stride, packets) != 1:
            stride += 1
        flow.order_stride = stride
    flow.needed = packets - flow.allowed_loss // params.payload
    tags = flow.tag_bits
    urgent = flow.tags * packets
    if flow.tags > 1:
        urgent = 0
        for word in range(flow.bitmap_words):
            urgent += ones(tags[word])
    if params.send_order == IMPORTANT_FIRST:
        flow.order_offset = _first_packet(flow, packets, packets - urgent if flow.tags > 1 else packets)
    _begin_pass(params, flow, 0, packets, urgent)


@njit
def begin_resend_pass(params: DlcpParameters, flow: DlcpFlow) -> None:
    """Begin a pass after a complete Bitmap: send the missing packets (`flow.resend`) that are needed."""
    resend = flow.resend
    tags = flow.tag_bits
    missing = 0
    urgent = 0
    for word in range(flow.bitmap_words):
        bits = resend[word]
        missing += ones(bits)
        if flow.tags > 1:
            urgent += ones(bits & tags[word])
    if flow.tags <= 1:
        urgent = flow.tags * missing
    flow.passes += 1
    _begin_pass(params, flow, flow.packets - missing, missing, urgent)


@njit
def next_packet(params: DlcpParameters, flow: DlcpFlow) -> int:
    """Return the next packet of this pass; BLOCKED at its end."""
    quota = flow.quota
    if quota == 0:
        return BLOCKED
    packets = flow.packets
    tags = flow.tag_bits
    resend = flow.resend
    is_resend_pass = flow.passes > 0
    in_phases = params.send_order == IMPORTANT_FIRST and flow.tags > 1
    position = flow.position
    while True:
        if position == packets:
            if not in_phases or flow.droppable_phase:
                flow.quota = 0
                return BLOCKED
            flow.droppable_phase = 1
            position = 0
            if not is_resend_pass:
                flow.midway_state = REACHED
        sequence = (flow.order_offset + position * flow.order_stride) % packets
        position += 1
        if is_resend_pass and bit(resend, sequence) == 0:
            continue
        important = flow.tags if flow.tags <= 1 else bit(tags, sequence)
        if in_phases and important == flow.droppable_phase:
            continue
        if important == 0 and quota <= flow.urgent:
            continue  # the rest of the quota is for important ones
        break
    flow.position = position
    flow.quota = quota - 1
    if important and flow.urgent:
        flow.urgent -= 1
    return sequence


# --- probes ----------------------------------------------------------------------------------------------------------


@njit
def start(params: DlcpParameters, flow: DlcpFlow, now: int) -> None:
    """Begin a message: its rate, and the order of its packets."""
    begin(params, flow, now)
    first_pass(params, flow)
    flow.timed = -1


@njit
def _send(flow: DlcpFlow, sequence: int, now: int) -> int:
    """Record a transmission; one packet at a time is timed. Return IMPORTANT_FLAG if it was sent before."""
    if flow.timed < 0:
        flow.timed = sequence
        flow.timed_at = now
    sent = flow.sent_packets
    if bit(sent, sequence):
        return IMPORTANT_FLAG
    set_bit(sent, sequence)
    flow.sent_once += 1
    return 0


@njit
def parts_of(words: int) -> int:
    """Return the number of parts of a Bitmap of `words` bitmap words."""
    return (words + ANSWER_WORDS - 1) // ANSWER_WORDS


@njit
def _send_probe(flow: DlcpFlow, part: int) -> int:
    """Return a probe for one part or for everything."""
    flow.probes_sent += 1
    return PULL_PROBE + (part << NUMBER_BITS | (flow.probe_number & NUMBERS))


@njit
def _set_probe_timer(params: DlcpParameters, flow: DlcpFlow, wait: int, now: int) -> None:
    """Set the time until the probe is repeated, up to a maximum."""
    flow.probe_wait = min(wait, max(LONGEST * params.base_rtt, params.probe_timeout))
    flow.timer = now + flow.probe_wait


@njit
def _send_new_probe(params: DlcpParameters, flow: DlcpFlow, now: int) -> int:
    """Return the first probe with a new number, for everything."""
    words = flow.bitmap_words
    parts = parts_of(words)
    awaited = flow.awaited
    flow.probe_number += 1
    flow.probe_state = parts
    for part in range(parts):
        set_bit(awaited, part)
    _set_probe_timer(params, flow, max(3 * smoothed(flow), params.probe_timeout), now)
    return _send_probe(flow, EVERYTHING)


@njit
def _repeat_probe(params: DlcpParameters, flow: DlcpFlow, now: int) -> int:
    """Repeat an overdue probe: for everything, or for the next missing part."""
    parts = parts_of(flow.bitmap_words)
    if flow.next_query == 0:
        if flow.probe_state == parts:
            _set_probe_timer(params, flow, 2 * flow.probe_wait, now)
            return _send_probe(flow, EVERYTHING)
        flow.next_query = 1
    awaited = flow.awaited
    part = flow.next_query
    while part <= parts and bit(awaited, part - 1) == 0:
        part += 1
    if part > parts:
        flow.next_query = 0
        _set_probe_timer(params, flow, 2 * flow.probe_wait, now)
        return BLOCKED
    flow.next_query = part + 1
    return _send_probe(flow, part)


@njit
def _resend_midway(flow: DlcpFlow, now: int) -> int:
    """Return the next important packet reported missing in the middle of the pass."""
    resend = flow.resend
    sequence = flow.resend_from
    while bit(resend, sequence) == 0:
        sequence += 1
    flow.resend_from = sequence + 1
    flow.resends_left -= 1
    return sequence | _send(flow, sequence, now)


@njit
def pull(params: DlcpParameters, flow: DlcpFlow, now: int) -> int:
    """Return the packets of this pass, then, after a silence, a Probe."""
    state = flow.probe_state
    if state == DUE:
        return _send_new_probe(params, flow, now)
    if state > 0 and flow.timer == 0:
        probe = _repeat_probe(params, flow, now)
        if probe != BLOCKED:
            return probe
    if flow.resends_left and flow.midway_state == ANSWERED_MIDWAY:
        return _resend_midway(flow, now)
    if state == IDLE or flow.midway_state == ASKED:
        sequence = next_packet(params, flow)
        if sequence != BLOCKED:
            if flow.midway_state == REACHED:
                flow.midway_state = WAITING
                flow.timer = now + silence(flow)
            return sequence | _send(flow, sequence, now)
    if state == IDLE:
        flow.probe_state = QUIET
        flow.timer = now + silence(flow)
    return BLOCKED


@njit
def on_timer(params: DlcpParameters, flow: DlcpFlow, now: int) -> None:
    """Make a probe due after the silence. (A probe's own timer only has to expire.)"""
    if flow.probe_state == QUIET:
        flow.probe_state = DUE
    elif flow.probe_state == IDLE and flow.midway_state == WAITING:
        flow.probe_state = DUE
        flow.midway_state = ASKED


@njit
def _store_part(flow: DlcpFlow, part: int) -> None:
    """Record the missing packets of one part of a Bitmap for retransmission."""
    words = flow.bitmap_words
    resend = flow.resend
    peer_bitmaps = flow.peer_bitmaps  # the second one is the snapshot
    packets = flow.packets
    first = part * ANSWER_WORDS
    for word in range(first, min(first + ANSWER_WORDS, words)):
        valid = min(packets - (word << 5), 32)
        missing = ~peer_bitmaps[words + word] & ((1 << valid) - 1)
        if flow.midway_state == ASKED:
            missing &= flow.tag_bits[word]
            flow.resends_left += ones(missing)
        resend[word] = missing


@njit
def _process_bitmap(params: DlcpParameters, flow: DlcpFlow, sequence: int, argument: int, now: int) -> None:
    """Process a part of an answer; the last one begins another pass."""
    part = (argument >> NUMBER_BITS) - 1 if argument >> NUMBER_BITS else sequence
    awaited = flow.awaited
    if flow.probe_state <= 0 or argument & NUMBERS != flow.probe_number & NUMBERS or bit(awaited, part) == 0:
        return
    clear_bit(awaited, part)
    _store_part(flow, part)
    flow.probe_state -= 1
    if flow.probe_state == IDLE:
        # packets in flight are not worth timing
        flow.timer = 0
        flow.next_query = 0
        flow.timed = -1
        if flow.midway_state == ASKED:
            flow.midway_state = ANSWERED_MIDWAY
            flow.resend_from = 0
        else:
            begin_resend_pass(params, flow)
    elif flow.next_query == 0:
        flow.timer = now + flow.probe_wait


@njit
def on_control(
    params: DlcpParameters, flow: DlcpFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """End the flow at Stop, retransmit for a Bitmap, adapt the rate to acknowledgements."""
    if kind == STOP:
        flow.is_done = 1
        flow.timer = 0
    elif kind == BITMAP:
        _process_bitmap(params, flow, sequence, argument, now)
    else:
        timed = flow.timed
        if sequence == timed:
            flow.timed = -1
            rtt = max(now - flow.timed_at, 1)  # sockets may send a little ahead of their schedule
            on_rtt_sample(params, flow, rtt)
        elif timed >= 0:
            detect_lost_sample(params, flow, now)
        if flow.probe_state == QUIET:
            flow.timer = now + silence(flow)
        on_acknowledgement(params, flow, argument, echo, now)
