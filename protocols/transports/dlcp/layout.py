"""Layout of DLCP's records, for `dlcp`, `packet_order`, `rate_control` and `loss_budget`.

`M` is the state; `k` the parameters, `f` the sender of a message, `r` its receiver, `q` the words that a pair shares at
its sender, `p` those it shares at its receiver, `h` those that all pairs share that send to a host.
"""

from gradwire.jit.layout import PAIR_USER, R_USER, S_USER

# parameters
K_POLICY, K_CONTROL, K_GAIN, K_FLOOR, K_PROBE, K_IMPORTANT, K_RTT, K_PACKET = 0, 1, 2, 3, 4, 5, 6, 7
K_LOW, K_HIGH, K_BETA, K_EWMA, K_STEP, K_ORDER, K_PAYLOAD, K_SLOWEST = 8, 9, 10, 11, 12, 13, 14, 15
EARLY, EAGER, ON_PROBE = 0, 1, 2
BY_RECEIVER, BY_MARKS, BY_DELAY = 0, 1, 2
IMPORTANT_FIRST, SEQUENTIAL, RANDOM = 0, 1, 2

# a sender's bitmaps: packets to send in this pass, parts of a Bitmap that are awaited, packets sent so far
RESEND, AWAITED, SENT, SENDER_BITMAPS = 0, 1, 2, 3
# a sender's own words
NEW = S_USER  # packets sent at least once
QUOTA = S_USER + 1  # packets that this pass still sends
URGENT = S_USER + 2  # of them, important ones required for delivery
POSITION = S_USER + 3  # position of this pass in the order of the message
TURN = S_USER + 4  # 1 once the important packets are done and the droppable ones follow
PASS = S_USER + 5  # passes before this one
OFFSET = S_USER + 6  # first packet of the message's order
STRIDE = S_USER + 7  # and the step from one packet to the next
NEEDED = S_USER + 8  # packets required for delivery
TIMED = S_USER + 9  # the packet whose round trip is measured, -1 = none
TIMED_AT = S_USER + 10
PROBE = S_USER + 11  # number of the last probe
PROBES = S_USER + 12  # probes sent, repetitions included
PROBING = S_USER + 13  # IDLE, QUIET, DUE, or the number of parts of the answer still to come
WAIT = S_USER + 14  # time until a probe is repeated
NEXT_QUERY = S_USER + 15  # the next part to be requested again, counted from 1; 0 = none
MIDWAY = S_USER + 16  # state of the query about important packets in the middle of the first pass
RESENDS_LEFT = S_USER + 17  # important packets (RESEND) that its answer reported missing
RESEND_FROM = S_USER + 18  # where the search for the next of them starts
NOT_YET, REACHED, WAITING, ASKED, ANSWERED_MIDWAY = 0, 1, 2, 3, 4  # of MIDWAY

# words that a pair shares at its sender
Q_RATE = PAIR_USER  # share of the line rate, 20 bits fixed point; 0 before the first message
Q_ALPHA = PAIR_USER + 1
Q_ACKED = PAIR_USER + 2  # acknowledgements in this round trip
Q_MARKED = PAIR_USER + 3
Q_ROUND = PAIR_USER + 4  # end of the round trip
Q_QUIET = PAIR_USER + 5  # no reduction for marks before
Q_SRTT = PAIR_USER + 6
Q_LAST = PAIR_USER + 7  # the round trip measured last, 0 = none yet
Q_SLOPE = PAIR_USER + 8  # TIMELY: smoothed difference of round trips
Q_CALM = PAIR_USER + 9  # TIMELY: consecutive round trips without growth
Q_SENDERS = PAIR_USER + 10  # number of pairs that send to the receiver, as it reports; 0 = unknown
Q_HEARD = PAIR_USER + 11  # time of the last message from the receiver
PAIR_WORDS = 12

# a receiver's own words
IMPORTANT_ARRIVED = R_USER  # important packets that arrived
ANSWERED = R_USER + 1  # number of the last probe answered with a Bitmap
PERIOD = R_USER + 2  # start of the base round trip in which each query is answered once
OPEN = R_USER + 3  # 1 from its first arrival until it is delivered

# words that a pair shares at its receiver
P_OPEN = 0  # messages that have arrived in part
P_SEEN = 1  # the last epoch with a packet, 0 = none
P_BEFORE = 2  # the previous value of P_SEEN
P_POOLS = 3  # two budgets, one per direction: number, and bytes left over by its messages
PEER_WORDS = 7
# words shared by all pairs that send to one host
H_EPOCH = 0  # number of the epoch
H_ENDS = 1  # its end
H_COUNT = 2  # pairs with a packet in it
H_BEFORE = 3  # those of the epoch before
HOST_WORDS = 4
