"""The words of LTP's records: what its parts (`ltp`, `ltp_rate`) keep, and where.

`M` is the state; `k` the parameters, `f` the sender of a message, `r` its receiver.
"""

from gradwire.components.layout import R_USER, S_USER

# a sender's own words
FRESH = S_USER  # packets sent for the first time
CURSOR = S_USER + 1  # no packet of this pass below
PASS = S_USER + 2  # CRITICAL, NORMAL or AGAIN
FIRST = S_USER + 3  # everything below has been acknowledged
ACKED = S_USER + 4
HEARD = S_USER + 5  # acknowledgements in this pass
BACKOFF = S_USER + 6  # passes in a row of which nothing came back
SRTT = S_USER + 7
SMALLEST = S_USER + 8  # smallest round trip, 0 = none measured
TIMED = S_USER + 9  # the packet whose round trip is measured, -1 = none
TIMED_AT = S_USER + 10
TIMED_ACKED = S_USER + 11  # ACKED when it was sent
RATE = S_USER + 12  # share of the line rate, 20-bit fixed point
BEST = S_USER + 13  # largest sample since the filter was last turned
BEFORE = S_USER + 14  # largest sample of the ten round trips before
ROUNDS = S_USER + 15  # samples since the filter was last turned
MODE = S_USER + 16  # STARTUP, DRAIN, or place in the cycle
FULL = S_USER + 17  # the rate to be passed by a quarter
STEADY = S_USER + 18  # round trips in a row that did not
# a receiver's own words
WANTED = R_USER  # critical packets that arrived
BEGAN = R_USER + 1  # when the first packet arrived, 0 = none has
IDEAL = R_USER + 2  # what the message would take alone

K_PACKET, K_RTT, K_TIMEOUT, K_INITIAL, K_FLOOR, K_SPEED = 0, 1, 2, 3, 4, 5
K_THRESHOLD, K_DEADLINE, K_MISSING, K_CRITICAL = 6, 7, 8, 9
K_SLOWER = 10  # how often the sender's line is faster than the slowest link of its paths, << 10

CRITICAL, NORMAL, AGAIN = 0, 1, 2
STARTUP, DRAIN = -2, -1
