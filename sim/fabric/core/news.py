"""What a host writes down for Python: messages that are delivered, and senders that have nothing more to send."""

from gradwire.sim.fabric.compiled import njit
from gradwire.sim.fabric.heap import push
from gradwire.sim.fabric.layout import (
    DELIVERED,
    DONE_WORDS,
    FINISHED,
    H_HOST_LATENCY,
    H_RECEIVERS,
    R_FOLLOW,
    R_GOT,
    R_JOIN,
    R_TELL,
    RECEIVER_WORDS,
    S_EARLIEST,
    S_ORDER,
    S_WAIT,
    T_DELIVERED,
    T_DONE,
    T_DONE_BASE,
    TELL_DELIVERED,
    TELL_FINISHED,
    WHAT_START,
)


@njit
def _log_done(M, th, time, f, what, got):
    n = M[th + T_DONE]
    at = M[th + T_DONE_BASE] + n * DONE_WORDS
    M[at] = time
    M[at + 1] = f
    M[at + 2] = what
    M[at + 3] = got
    M[th + T_DONE] = n + 1


@njit
def log_delivery(M, th, node, r, flow, now):
    """A message has been delivered."""
    _log_done(M, th, now, flow, DELIVERED, M[r + R_GOT])
    if _follow(M, node, r, now) and now < M[th + T_DELIVERED]:
        M[th + T_DELIVERED] = now


@njit
def log_end(M, th, flow, now):
    """The sender of a message has nothing more to send."""
    _log_done(M, th, now, flow, FINISHED, 0)
    tell = M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_TELL]
    if tell & TELL_FINISHED and now < M[th + T_DELIVERED]:
        M[th + T_DELIVERED] = now


@njit
def _follow(M, node, r, now):
    """A message has been delivered: count down what waits for it, and start, a software latency later, what waits for
    nothing else. Those senders are on this very host. True if Python has to hear of it in time."""
    tell = M[r + R_TELL] & TELL_DELIVERED > 0
    join = M[r + R_JOIN]
    if join:
        M[join] -= 1
        tell |= M[join] == 0
    waiting = M[r + R_FOLLOW]
    if waiting:
        for i in range(1, M[waiting] + 1):
            f = M[waiting + i]
            if f == 0:  # has no record yet
                tell = True
                continue
            M[f + S_EARLIEST] = max(M[f + S_EARLIEST], now + M[H_HOST_LATENCY])
            M[f + S_WAIT] -= 1
            if M[f + S_WAIT] == 0:
                push(M, node, M[f + S_EARLIEST], M[f + S_ORDER] | (f << 2) | WHAT_START)
    return tell
