"""Layout of the Linux sender's state: its words, parameters, send times, and clock of ticks.

Scoreboard and windows are those of `window`. Beside the three bitmaps, and laid out like bitmaps, are the time at which
each packet was last sent (one word per packet) and the rarely used words, one for each bitmap of the last group: the
record of a flow has no room for them.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import S_BITS, S_USER, S_WORDS
from gradwire.protocols.transports.common.window import SRTT

# a sender's own words, unused or with another use in `window`; S_USER + 16 to + 24 belong to the congestion control
RACK_AT = S_USER + 8  # send time of the arrived packet that was sent last ...
RACK_SEQUENCE = S_USER + 10  # ... and its number
RACK_RTT = S_USER + 11  # its round trip
LEAST_RTT = S_USER + 15
TIMER = S_USER + 25  # purpose of the running timer
TRIES = S_USER + 26  # time-outs since the last progress
PRIOR = S_USER + 27  # the window before the last reduction
DELIVERED = S_USER + 28  # proportional rate reduction: packets that have arrived since it began ...
SENT = S_USER + 29  # ... and packets sent
PROBE = S_USER + 30  # tail loss probe in flight: 2 * (next new packet) + 1 if it was a retransmission, 0 = none
UNDO = S_USER + 31  # 1 + first packet in flight at the reduction, 0 = it cannot be undone
UNDO_AGAIN = S_USER + 32  # retransmissions since then not known to be needless, -1 = there were none
PRIOR_THRESHOLD = S_USER + 33  # ssthresh before, 0 = marks forbid undoing
SEND_NOW = S_USER + 34  # what may be sent at once: NOTHING, a PROBE_DUE, NEW_FIRST

# words of the last group of bitmaps
FRTO = 0  # 1 while a time-out may have been spurious
DEVIATION = 1  # of round trips, as in the kernel
DEVIATION_MOST = 2  # the largest in this round trip
ROUND_RTT = 3  # this round trip ends when this packet is acknowledged
ROUND = 4  # slow start: the round ends when this packet is acknowledged
ROUND_AT = 5  # start of the round
LAST_ACK = 6
ROUND_LEAST = 7  # smallest round trip in this round, 0 = none yet
SAMPLES = 8
BEFORE_LEAST = 9  # smallest round trip in the round before, 0 = none
BASELINE = 10  # conservative slow start: smallest round trip when it began, 0 = it has not
CONSERVATIVE = 11  # rounds of it
SLOW_START_ENDED = 12  # 1 once acknowledgements have ended slow start
REORDERED = 13  # 1 once a packet that was sent once has arrived after later ones
STEPS = 14  # reordering window in quarters of the smallest round trip, less one
PERSIST = 15  # recoveries for which that applies
STEP_UNTIL = 16  # no further step before this packet is acknowledged
BACKLOG = 17  # memory bytes of the packets queued at the NIC
ROOM = 18  # and their limit, at least one or two full packets
MORE = 19

SCOREBOARD = 3
BITMAPS = SCOREBOARD + 32 + MORE

# states, as in the kernel
OPEN, DISORDER, CWR, RECOVERY, LOSS = 0, 1, 2, 3, 4
# timers
TIME_OUT, REORDERING, TAIL = 0, 1, 2
# haste
NOTHING, PROBE_DUE, NEW_FIRST = 0, 1, 2

# parameters; the first five as in `window` and `delayed_acks`, those of CUBIC and DCTCP from 5 to 10
K_CONTROL = 11  # RENO, CUBIC or DCTCP
K_RACK = 12  # losses are detected by time, not by duplicates
K_TAIL = 13  # tail loss probes
K_FRTO = 14
K_SLOW_START = 15  # STANDARD, HYSTART, HYSTART_PLUS
K_TICK = 16  # timers use ticks of this many ps, 0 = exact to the picosecond
K_SLACK = 17  # added to the waits of RACK and tail loss probes
K_PACING = 18  # bytes on the wire of a full packet with pacing, else 0
K_QUICK = 19  # initial acknowledgements that a receiver does not delay
K_ACK_TRAIN = 20  # added by HyStart to the smallest round trip
K_HANDSHAKE = 21  # round trip of a connection's handshake, 0 = unknown
K_LONE = 22  # added to the wait of a tail loss probe with one packet in flight: its acknowledgement may be delayed
K_LAST = 23  # 1: the last packet of a message is acknowledged at once
K_QUEUES = 24  # memory bytes of a packet beyond those on the wire if packets queue at the NIC, else 0
K_PAYLOAD = 25  # of a full packet
RENO, CUBIC, DCTCP = 0, 1, 2
STANDARD, HYSTART, HYSTART_PLUS = 0, 1, 2


@njit
def extra_word(M, f, word):
    """Return the index of a rarely used word."""
    return M[f + S_BITS] + (SCOREBOARD + 32 + word) * M[f + S_WORDS]


@njit
def stamp_of(M, f, sequence):
    """Return the index of the time at which a packet was last sent."""
    return M[f + S_BITS] + (SCOREBOARD + (sequence & 31)) * M[f + S_WORDS] + (sequence >> 5)


@njit
def due(M, k, now, wait):
    """Return the expiry time of a timer set now for `wait` ps. With ticks, it is the start of the tick after the one in
    which the timer is due; from 63 ticks on every eighth tick, from eight times as many on every 64th, and so on
    [kernel/time/timer.c: `calc_index`]."""
    tick = M[k + K_TICK]
    if tick == 0:
        return now + wait
    ticks = (wait + tick - 1) // tick
    shift = 0
    while ticks >= 63 << shift:
        shift += 3
    return (((now // tick + ticks + (1 << shift)) >> shift) << shift) * tick


@njit
def smoothed(M, f, rtt):
    """Update the smoothed round trip with a sample (RFC 6298)."""
    M[f + SRTT] = rtt if M[f + SRTT] == 0 else max(M[f + SRTT] + ((rtt - M[f + SRTT]) >> 3), 1)
