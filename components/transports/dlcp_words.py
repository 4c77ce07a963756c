"""The words of DLCP's records: what its parts (`dlcp`, `dlcp_order`, `dlcp_rate`) keep, and where.

`M` is the state; `k` the parameters, `f` the sender of a message, `r` its receiver, `q` what a pair shares at its
sender, `p` what it shares at its receiver, `h` what all pairs share that send to a host.
"""

from gradwire.components.layout import PAIR_USER, R_USER, S_USER

# parameters
K_POLICY, K_CONTROL, K_GAIN, K_FLOOR, K_PROBE, K_IMPORTANT, K_RTT, K_PACKET = 0, 1, 2, 3, 4, 5, 6, 7
K_LOW, K_HIGH, K_BETA, K_EWMA, K_STEP, K_ORDER, K_PAYLOAD, K_SLOWEST = 8, 9, 10, 11, 12, 13, 14, 15
EARLY, EAGER, ON_PROBE = 0, 1, 2
BY_RECEIVER, BY_MARKS, BY_DELAY = 0, 1, 2
IMPORTANT_FIRST, SEQUENTIAL, RANDOM = 0, 1, 2

# a sender's bitmaps: packets to send in this pass, parts of a Bitmap that are awaited, packets that have been sent
RESEND, AWAITED, SENT, SENDER_BITMAPS = 0, 1, 2, 3
# a sender's own words
NEW = S_USER  # packets that have been sent at least once
QUOTA = S_USER + 1  # packets that this pass still sends
URGENT = S_USER + 2  # of them, important ones without which the message cannot be delivered
POSITION = S_USER + 3  # where this pass has come to in the order of the message
TURN = S_USER + 4  # 1 when it has been through the important packets, and is at the droppable ones
PASS = S_USER + 5  # passes before this one
OFFSET = S_USER + 6  # the order of the message begins at this packet
STRIDE = S_USER + 7  # and goes on in steps of so many
NEEDED = S_USER + 8  # packets without which the message cannot be delivered
TIMED = S_USER + 9  # the packet whose round trip is measured, -1 = none
TIMED_AT = S_USER + 10
PROBE = S_USER + 11  # number of the last probe
PROBES = S_USER + 12  # probes sent, with repetitions
PROBING = S_USER + 13  # IDLE, QUIET, DUE, or how many parts of the answer are still to come
WAIT = S_USER + 14  # how long until a probe is repeated
ASKING = S_USER + 15  # the next part to be asked for again, counted from 1; 0 = none
MIDWAY = S_USER + 16  # what has become of the question about important packets in the middle of the first pass
AGAIN = S_USER + 17  # important packets (RESEND) that its answer has shown as missing
FROM = S_USER + 18  # where the next of them is looked for
NOT_YET, REACHED, WAITING, ASKED, ANSWERED_MIDWAY = 0, 1, 2, 3, 4  # of MIDWAY

# what a pair shares at its sender
Q_RATE = PAIR_USER  # share of the line rate, 20 bits fixed point; 0 before the first message
Q_ALPHA = PAIR_USER + 1
Q_ACKED = PAIR_USER + 2  # acknowledgements in this round trip
Q_MARKED = PAIR_USER + 3
Q_ROUND = PAIR_USER + 4  # when the round trip ends
Q_QUIET = PAIR_USER + 5  # no lower rate for marks before
Q_SRTT = PAIR_USER + 6
Q_LAST = PAIR_USER + 7  # the round trip measured last, 0 = none yet
Q_SLOPE = PAIR_USER + 8  # TIMELY: smoothed difference of round trips
Q_CALM = PAIR_USER + 9  # TIMELY: round trips in a row that did not grow
Q_SENDERS = PAIR_USER + 10  # how many pairs send to the receiver, as it says; 0 = not known
Q_HEARD = PAIR_USER + 11  # when anything was heard of it last
PAIR_WORDS = 12

# a receiver's own words
WANTED = R_USER  # important packets that arrived
ANSWERED = R_USER + 1  # number of the last probe that was answered with a Bitmap
PERIOD = R_USER + 2  # when the base round trip began in which each question is answered once
OPEN = R_USER + 3  # 1 once anything of it has arrived, until it is delivered

# what a pair shares at its receiver
P_OPEN = 0  # messages of which something has arrived and that are not delivered
P_SEEN = 1  # the last epoch in which a packet came, 0 = none
P_BEFORE = 2  # the epoch of P_SEEN before that
P_POOLS = 3  # two budgets, forth and back: number, and bytes that its messages have left over
PEER_WORDS = 7
# what all pairs share that send to one host
H_EPOCH = 0  # number of the epoch
H_ENDS = 1  # when it ends
H_COUNT = 2  # pairs of which a packet has come in it
H_BEFORE = 3  # those of the epoch before
HOST_WORDS = 4
