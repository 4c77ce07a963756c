"""Layout of LTP's records, for `ltp` and `ltp_rate`.

`M` is the state; `k` the parameters, `f` the sender of a message, `r` its receiver.
"""

from gradwire.jit.layout import R_USER, S_USER

# a sender's own words
FRESH = S_USER  # packets sent for the first time
CURSOR = S_USER + 1  # no packet of this pass is below
PASS = S_USER + 2  # CRITICAL, NORMAL or AGAIN
FIRST = S_USER + 3  # everything below has been acknowledged
ACKED = S_USER + 4
HEARD = S_USER + 5  # acknowledgements in this pass
BACKOFF = S_USER + 6  # consecutive passes without any answer
SRTT = S_USER + 7
MIN_RTT = S_USER + 8  # smallest round trip, 0 = none measured
TIMED = S_USER + 9  # the packet whose round trip is measured, -1 = none
TIMED_AT = S_USER + 10
TIMED_ACKED = S_USER + 11  # ACKED when it was sent
RATE = S_USER + 12  # share of the line rate, 20-bit fixed point
BEST = S_USER + 13  # largest sample since the last turn of the filter
BEFORE = S_USER + 14  # largest sample of the ten round trips before
ROUNDS = S_USER + 15  # samples since the last turn of the filter
MODE = S_USER + 16  # STARTUP, DRAIN, or index in the cycle
FULL = S_USER + 17  # the rate to exceed by a quarter
STEADY = S_USER + 18  # consecutive round trips that did not
# a receiver's own words
CRITICAL_ARRIVED = R_USER  # critical packets that arrived
BEGAN = R_USER + 1  # arrival time of the first packet, 0 = none
IDEAL = R_USER + 2  # unloaded transfer time of the message

K_PACKET, K_RTT, K_TIMEOUT, K_INITIAL, K_FLOOR, K_SPEED = 0, 1, 2, 3, 4, 5
K_THRESHOLD, K_DEADLINE, K_MISSING, K_CRITICAL = 6, 7, 8, 9
K_SLOWER = 10  # speed of the sender's line over that of the slowest link of its paths, << 10

CRITICAL, NORMAL, AGAIN = 0, 1, 2
STARTUP, DRAIN = -2, -1
