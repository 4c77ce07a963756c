"""Control packets that the receivers of a host send: answers, delayed acknowledgements, and pulls.

A pull asks a sender for a packet. Receivers that pace their senders take turns in sending pulls, spaced by the time
that a full packet of the flow takes on the host's line.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    A_ECHO,
    A_ENTROPY,
    A_KIND,
    A_PRIORITY,
    A_SIZE,
    B_ARGUMENT,
    B_SEQUENCE,
    H_RECEIVERS,
    KEY_ORDER,
    MASK_FLOW,
    MASK_KEY_NUMBER,
    MASK_SEQUENCE,
    MASK_SIZE,
    N_PULL_AT,
    N_PULL_HEAD,
    N_PULL_TAIL,
    N_READY_MASK,
    P_BUSY,
    P_FLAGS,
    P_QUEUE,
    P_SPEED,
    PULL,
    R_ARMED,
    R_CONTROL,
    R_FRAME,
    R_LAST,
    R_PULL_LISTED,
    R_PULL_NEXT,
    R_PULLED,
    R_PULLS,
    R_SENT,
    R_STREAM,
    R_TIMER,
    RECEIVER_WORDS,
    S_ORDER,
    WHAT_PULL,
    WHAT_TIMER,
)
from gradwire.sim.engine.memory.timer_heap import push, sender_of, watches

from .bindings import HOST_PATHS, PULLS, STREAMS, on_late
from .connection import in_stream
from .link import transmission_time, transmit
from .nic import SIZE_FIELD, with_entropy
from .pause import may_send
from .queue import append


@njit
def send_control(M, th, node, p, A, B, now):
    """Put a control packet on the link, or into its class."""
    c = min((A >> A_PRIORITY) & 7, M[p + P_FLAGS] >> 8)
    idle = M[p + P_BUSY] <= now and ((M[p + P_QUEUE] & 0xFF) | M[node + N_READY_MASK]) == 0
    if idle and may_send(M, p, c):
        transmit(M, th, p, A, B, now)
    else:
        append(M, th, p, A, B, (A >> A_SIZE) & MASK_SIZE, c, 0, now)


@njit
def _want_pulls(M, node, r, pulls, now):
    """Request more pulls for a receiver: it joins the host's list, and the host's timer is set if it was not."""
    M[r + R_PULLS] += pulls
    if M[r + R_PULL_LISTED]:
        return
    M[r + R_PULL_LISTED] = 1
    M[r + R_PULL_NEXT] = 0
    if M[node + N_PULL_HEAD]:
        M[M[node + N_PULL_TAIL] + R_PULL_NEXT] = r
    else:
        M[node + N_PULL_HEAD] = r
        push(M, node, max(now, M[node + N_PULL_AT]), (MASK_KEY_NUMBER << KEY_ORDER) | (node << 2) | WHAT_PULL)
    M[node + N_PULL_TAIL] = r


@njit
def send_pull(M, th, node, p, now):
    """Send a pull for the receiver whose turn it is; those that want none any more leave the list."""
    r = M[node + N_PULL_HEAD]
    while r and M[r + R_PULLS] == 0:
        M[r + R_PULL_LISTED] = 0
        r = M[r + R_PULL_NEXT]
    M[node + N_PULL_HEAD] = r
    if r == 0:
        return
    M[r + R_PULLS] -= 1
    M[r + R_PULLED] += 1
    M[r + R_SENT] += 1
    flow = (r - M[H_RECEIVERS]) // RECEIVER_WORDS
    A = M[r + R_CONTROL] | (PULL << A_KIND)
    B = flow | ((M[r + R_PULLED] & MASK_SEQUENCE) << B_ARGUMENT)
    if r != M[node + N_PULL_TAIL]:
        M[node + N_PULL_HEAD] = M[r + R_PULL_NEXT]
        M[M[node + N_PULL_TAIL] + R_PULL_NEXT] = r
        M[node + N_PULL_TAIL] = r
        M[r + R_PULL_NEXT] = 0
    M[node + N_PULL_AT] = now + transmission_time(M[r + R_FRAME], M[p + P_SPEED])
    push(M, node, M[node + N_PULL_AT], (MASK_KEY_NUMBER << KEY_ORDER) | (node << 2) | WHAT_PULL)
    send_control(M, th, node, p, A, B, now)


@njit
def answer(M, th, node, p, r, reply, A, B, now):
    """Send the control packets that a receiver wants in answer to a packet. `reply`: kind 3 | echo 1 | size 14 | count
    12 | rider 1 | pulls 8 | ... | argument 22, from bit 40 on (see `gradwire.protocols.transports.base.reply`)."""
    if PULLS:
        pulls = (reply >> 31) & 0xFF
        if pulls:
            _want_pulls(M, node, r, pulls, now)
    count = (reply >> 18) & 0xFFF
    if count == 0:
        return
    entropy = (A >> A_ENTROPY) & 0xFFFF
    A = M[r + R_CONTROL] | ((reply & 7) << A_KIND) | (((reply >> 3) & 1) << A_ECHO)
    if HOST_PATHS:
        A = with_entropy(A, entropy)
    size = (reply >> 4) & MASK_SIZE
    if size:
        A = (A & ~SIZE_FIELD) | (size << A_SIZE)
    sequence = (B >> B_SEQUENCE) & MASK_SEQUENCE
    if (reply >> 30) & 1:
        sequence = (B >> B_ARGUMENT) & MASK_SEQUENCE
    M[r + R_SENT] += count
    B = (B & MASK_FLOW) | (((reply >> 40) & MASK_SEQUENCE) << B_ARGUMENT)
    if count == 1:
        send_control(M, th, node, p, A, B | (sequence << B_SEQUENCE), now)
        return
    c = min((A >> A_PRIORITY) & 7, M[p + P_FLAGS] >> 8)
    size = (A >> A_SIZE) & MASK_SIZE
    for i in range(count):
        append(M, th, p, A, B | (i << B_SEQUENCE), size, c, 0, now)


@njit
def answer_or_wait(M, th, node, p, r, s, reply, A, B, now):
    """Send the answer of a receiver that may delay it to a data packet, or to the one before, and arm its timer. `s`:
    the record that its transport works on."""
    if (reply >> 39) & 1:
        _answer_last(M, th, node, p, s, reply, now)
    elif reply:
        answer(M, th, node, p, r, reply, A, B, now)
    M[s + R_LAST] = A
    M[s + R_LAST + 1] = B
    _arm_receiver(M, node, s)


@njit
def _answer_last(M, th, node, p, s, reply, now):
    """Send an answer to the last data packet."""
    B = M[s + R_LAST + 1]
    answer(M, th, node, p, M[H_RECEIVERS] + (B & MASK_FLOW) * RECEIVER_WORDS, reply, M[s + R_LAST], B, now)


@njit
def _arm_receiver(M, node, s):
    """Put a receiver's timer on the heap if no earlier entry of it is there."""
    timer = M[s + R_TIMER]
    if timer and (M[s + R_ARMED] == 0 or timer < M[s + R_ARMED]):
        M[s + R_ARMED] = timer
        push(M, node, timer, M[sender_of(M, s) + S_ORDER] | (s << 2) | WHAT_TIMER)


@njit
def receiver_timer(M, th, node, p, s, time, key):
    """Handle the entry of a receiver in the host's heap."""
    if not watches(M, sender_of(M, s), s + R_ARMED, time, key):
        return
    M[s + R_ARMED] = 0
    wanted = M[s + R_TIMER]
    if wanted and wanted <= time:
        M[s + R_TIMER] = 0
        reply = on_late(M, s, time)
        if STREAMS and M[s + R_STREAM]:
            reply = in_stream(M, s, reply)
        if reply:
            _answer_last(M, th, node, p, s, reply, time)
    _arm_receiver(M, node, s)
