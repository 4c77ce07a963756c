"""What the sender of `linux_sender` keeps: its words, its parameters, when packets were sent, and its clock of ticks.

Scoreboard and windows are those of `window`. Beside the three bitmaps there are, laid out as bitmaps are, the time at
which each packet was last sent (one word a packet) and the words that are rarely looked at, one for each bitmap of the
last group: the record of a flow has no room for them.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import S_BITS, S_USER, S_WORDS
from gradwire.components.transports.window import SRTT

# a sender's own words, where `window` has others or none; those from S_USER + 16 to + 24 are the congestion control's
RACK_AT = S_USER + 8  # when the packet was sent that was sent last of those that have arrived ...
RACK_SEQUENCE = S_USER + 10  # ... and which it was
RACK_RTT = S_USER + 11  # the round trip of the newest one
LEAST_RTT = S_USER + 15
TIMER = S_USER + 25  # what the timer that runs is for
TRIES = S_USER + 26  # time-outs since the last progress
PRIOR = S_USER + 27  # the window before the last reduction
DELIVERED = S_USER + 28  # proportional rate reduction: packets that have arrived since it began ...
SENT = S_USER + 29  # ... and that have been sent
PROBE = S_USER + 30  # the tail loss probe under way: 2 * (what was to be sent next) + 1 if it was sent again, 0 = none
UNDO = S_USER + 31  # 1 + first packet out there when the window was reduced, 0 = that stands
UNDO_AGAIN = S_USER + 32  # packets sent again since that have not turned out needless, -1 = none was
PRIOR_THRESHOLD = S_USER + 33  # ssthresh before, 0 = marks forbid going back
HASTE = S_USER + 34  # what may go out at once: NOTHING, a PROBE_DUE, NEW_FIRST

# words of the last group of bitmaps
FRTO = 0  # 1 while a time-out may have been spurious
DEVIATION = 1  # of round trips, as the kernel reckons it
DEVIATION_MOST = 2  # the largest in this round trip
ROUND_RTT = 3  # this round trip ends when that is acknowledged
ROUND = 4  # slow start: the round ends when that is acknowledged
ROUND_AT = 5  # and began then
LAST_ACK = 6
ROUND_LEAST = 7  # smallest round trip in this round, 0 = none yet
SAMPLES = 8
BEFORE_LEAST = 9  # smallest round trip in the round before, 0 = none
BASELINE = 10  # conservative slow start: smallest round trip when it began, 0 = it has not
CONSERVATIVE = 11  # rounds of it
FOUND = 12  # 1 once slow start has been ended by what acknowledgements told
REORDERED = 13  # 1 once a packet that had not been sent again has arrived after later ones
STEPS = 14  # quarters of the smallest round trip by which packets may be late, less one
PERSIST = 15  # recoveries for which that holds
STEP_UNTIL = 16  # no further step before that is acknowledged
BACKLOG = 17  # bytes of memory of the packets that wait at the NIC
ROOM = 18  # and that may, unless a full packet or two are more
MORE = 19

SCOREBOARD = 3
BITMAPS = SCOREBOARD + 32 + MORE

# states, as in the kernel
OPEN, DISORDER, CWR, RECOVERY, LOSS = 0, 1, 2, 3, 4
# timers
TIME_OUT, REORDERING, TAIL = 0, 1, 2
# haste
NOTHING, PROBE_DUE, NEW_FIRST = 0, 1, 2

# parameters; the first five as in `window` and `acknowledgements`, those of CUBIC and DCTCP from 5 to 10
K_CONTROL = 11  # RENO, CUBIC or DCTCP
K_RACK = 12  # losses are found by time, not by duplicates
K_TAIL = 13  # tail loss probes
K_FRTO = 14
K_SLOW_START = 15  # STANDARD, HYSTART, HYSTART_PLUS
K_TICK = 16  # timers go by ticks of so many ps, 0 = to the picosecond
K_SLACK = 17  # added to what RACK and tail loss probes wait
K_PACING = 18  # bytes on the wire of a full packet where packets are paced, else 0
K_QUICK = 19  # acknowledgements that a receiver does not put off at first
K_ACK_TRAIN = 20  # what HyStart adds to the smallest round trip
K_HANDSHAKE = 21  # the round trip that a connection knows from its handshake, 0 = it knows none
K_LONE = 22  # added to what a tail loss probe waits when one packet is out there: its acknowledgement may be put off
K_LAST = 23  # 1: the last packet of a message is acknowledged at once
K_QUEUES = 24  # bytes of memory that a packet takes beside those on the wire where packets wait at the NIC, else 0
K_PAYLOAD = 25  # of a full packet
RENO, CUBIC, DCTCP = 0, 1, 2
STANDARD, HYSTART, HYSTART_PLUS = 0, 1, 2


@njit
def more(M, f, word):
    """Where one of the words that are rarely looked at is."""
    return M[f + S_BITS] + (SCOREBOARD + 32 + word) * M[f + S_WORDS]


@njit
def stamp_of(M, f, sequence):
    """Where the time is at which a packet was last sent."""
    return M[f + S_BITS] + (SCOREBOARD + (sequence & 31)) * M[f + S_WORDS] + (sequence >> 5)


@njit
def due(M, k, now, wait):
    """When a timer set now for `wait` ps goes off: with ticks at the beginning of the one after that in which it is
    due, from 63 ticks on of every eighth, from eight times as many on of every 64th, and so on [kernel/time/timer.c:
    `calc_index`]."""
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
    """The smoothed round trip takes in another one (RFC 6298)."""
    M[f + SRTT] = rtt if M[f + SRTT] == 0 else max(M[f + SRTT] + ((rtt - M[f + SRTT]) >> 3), 1)
