"""Log of events for Python: delivered messages, and senders that are done."""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    DELIVERED,
    DONE_WORDS,
    FINISHED,
    H_RECEIVERS,
    R_GOT,
    R_TELL,
    RECEIVER_WORDS,
    T_DELIVERED,
    T_DONE,
    T_DONE_BASE,
    TELL_DELIVERED,
    TELL_FINISHED,
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
def log_delivery(M, th, r, flow, now):
    """Log the delivery of a message."""
    _log_done(M, th, now, flow, DELIVERED, M[r + R_GOT])
    if M[r + R_TELL] & TELL_DELIVERED and now < M[th + T_DELIVERED]:
        M[th + T_DELIVERED] = now


@njit
def log_end(M, th, flow, now):
    """Log that the sender of a message has nothing more to send."""
    _log_done(M, th, now, flow, FINISHED, 0)
    tell = M[M[H_RECEIVERS] + flow * RECEIVER_WORDS + R_TELL]
    if tell & TELL_FINISHED and now < M[th + T_DELIVERED]:
        M[th + T_DELIVERED] = now
