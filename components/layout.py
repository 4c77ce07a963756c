"""Where every word of the engine's state lives.

The whole state of a run is **one flat array of 64-bit integers**, `M`. Compiled code, Python code and the oracle
(`gradwire.testing`) see the same words, so nothing is ever converted, and a snapshot of a run is a copy of one array.
Records are laid out by hand: a record is named by the index of its first word (its *base*), and a field is a constant
added to it - `M[port + P_BUSY]` reads like a C struct access and compiles to one.

Why one array: a compiled function that is handed forty arrays spends its time counting references to them, and two
threads then fight over the counters. Why 64-bit signed words everywhere: Numba and plain Python agree on them.

Units: time in picoseconds, sizes in bytes. Link speed is kept as picoseconds per byte, scaled by 2**16 and rounded
up, so that a transmission takes `ceil(bytes * ps_per_byte)` without a division.
"""

from gradwire.components.limits import MAX_FLOWS, MAX_PACKETS
from gradwire.scenarios.wire import SPEED_SHIFT as SPEED_SHIFT  # for components

# --- header: the first words of M -------------------------------------------------------------------------------
H_NOW = 0  # everything before this time has happened
H_UNTIL = 1  # run to here (exclusive)
H_WINDOW = 2  # length of a window, at most the lookahead
H_HOST_LATENCY = 3  # after what Python has to hear of, at c, run on to at most c + this
H_SEED = 4
H_HOLDS = 5  # 1: the engine does not return for the number of packets in its windows
H_PARITY = 6  # which half of the wake flags the next window reads
H_BUDGET = 7  # leave after this many windows
H_STATUS = 8  # why the engine returned
H_THREADS = 9  # number of thread records
H_BARRIER = 16  # arrivals at the barrier (own cache line)
H_SENSE = 24  # generation of the barrier (own cache line)
H_GO = 32  # epoch counter that hands a call to the worker threads (own cache line)
H_QUIT = 33  # workers leave their loop, and nobody waits for anybody
H_NODES = 40  # bases of the regions
H_PORTS = 41
H_HEADS = 42
H_INGRESS = 43
H_WAKE = 44
H_NEXT = 45
H_DEST = 46
H_ROUTE = 47
H_GROUPS = 48
H_SENDERS = 49
H_RECEIVERS = 50
H_THREAD = 52
H_PARAMS = 53
H_BLOCK_SHIFT = 54  # destinations of a block of the routing tables, as a power of two
H_POSITIONS = 55  # number of nodes: length of one half of the wake flags
H_ORDER = 56  # node bases by position
H_STREAK = 57  # windows in a row that would rather be advanced by all threads, or by one
H_FLOWLET_GAP = 58  # picoseconds of silence after which a flow may change its way
H_RED_KMAX = 59  # bytes in a queue from which on every packet is marked
H_RED_PMAX = 60  # chance of a mark just below it << 32
H_SHARED = 61  # bytes of the buffer that the ports of a switch share
H_ALPHA = 62  # what a queue may take of what is free of it, times ALPHA_UNIT
H_ENTROPIES = 63  # path entropies that hosts choose among for one message, 0 = any
H_TRIM = 64  # bytes in a queue from which on packets are cut to their headers
H_TRIM_SIZE = 65  # bytes of a header
H_TRIM_CLASS = 66  # class of headers
H_HYSTERESIS = 67  # pause: so far below the limit the far end is told to go on
H_PAUSE_CLASSES = 68  # classes that can be paused
H_BACK = 70  # region: for every entry of INGRESS the port that leads back
H_TIES = 71  # region: for every entry of INGRESS the key of what breaks ties between arrivals
H_TIMERS = 80  # programs: base of the heap of their timers, entries of TIMER_WORDS (time, number, what)
H_TIMER_COUNT = 81
H_TIMER_SET = 82  # timers ever set
H_TIMER_NEXT = 83  # time of the first one, FOREVER without any
H_SORT = 84  # scratch: what has been told, as a heap of the same kind
H_SOON = 85  # the earliest thing that followed from what was played last
H_TOLD = 86  # the earliest thing in it of which Python has to hear
H_SORTED = 87  # entries of H_SORT
H_STARVED = 88  # base of the process at whose end of course the player has stopped, 0 = none
H_WRONG = 89  # 1 + number (sim.fabric.watched.CHECKED) of the function that has returned what cannot be, 0 = none
H_WRONG_OWNER = 90  # number of its transport
H_WRONG_VALUE = 91  # what it returned
H_WRONG_LIMIT = 92  # and what it had to be below
H_SINCE = 93  # 1 once there are messages whose ties go by the time since their iteration began (S_SINCE)
H_NOTES_TIES = 94  # 1: it is counted where draws put packets in an order (T_TIES)
H_LIMITS = 96  # bytes that each class may hold of its port's buffer, or of the shared one (8 words)
H_BOOK = 104  # address of the book of messages (`sim.fabric.book`), rows of BOOK_WORDS
H_BOOK_FIRST = 105  # number of the message of its first row
H_FLOW_KEY = 106  # key of the path entropies that messages draw
H_USED = 107  # flow records that were ever in use: those from here on are zeros
H_FREE = 108  # base of the stack of the numbers of those that are free again, and how many they are
H_FREE_COUNT = 109
H_DROPPED = 110  # region: packets lost of the message that has a record, by number of the record
H_CLOSING = 111  # base of the list of records whose message is delivered and whose sender is done, and their number
H_CLOSING_COUNT = 112
H_TRANSPORTS = 113  # region: the transports of the run, KIND_WORDS each
H_ARENA = 114  # region: the first free stretch of every class of lengths; what was never used begins at H_ARENA_NEXT
H_ARENA_NEXT = 115
H_ARENA_END = 116
H_HEAP_NEXT = 117  # where heaps of hosts that grow find room
H_HEAP_END = 118
H_FAILED = 119  # FAILED_: why the run cannot go on; 0 = it can
H_FAR = 120  # 1 where the state is too large for the caches: what a node needs is asked for a node ahead
HEADER_WORDS = 128
FAILED_FLOWS, FAILED_ARENA, FAILED_HEAP, FAILED_ROUTE, FAILED_LATE = 1, 2, 3, 4, 5
ARENA_CLASSES = 256
ALPHA_UNIT = 1 << 16

RUNNING, REACHED, EXHAUSTED, LOG_FULL, POOL_FULL, BUSY, QUIET = 0, 1, 2, 3, 4, 5, 6

# --- node -------------------------------------------------------------------------------------------------------
NODE_WORDS = 48
N_KIND = 0  # 0 host, 1 switch
N_IN = 1  # first entry of its ingress list (INGRESS: port bases; HEADS: consumer counters)
N_IN_COUNT = 2
N_PORT = 3  # base of its (first) egress port
N_POSITION = 4  # index into WAKE and NEXT
N_DRAWS = 5  # packets balanced so far: the counter of its random draws
N_ACTIVE = 6  # base of the list of ports that have packets queued
N_ACTIVE_COUNT = 7
N_USED = 32  # switch with a shared buffer: bytes that wait in it
N_USED_BY = 40  # ... and of each class, where classes have limits (8 words)
N_EDGE = 8  # its number among the destinations of routing tables, or -1
N_ROUTE = 9  # switch: base of its row of the routing table, one word for each block of destinations
N_FLOWS = 9  # host: flows that may set timers here
N_KEY = 10  # key of its random draws
N_TABLE = 11  # switch: base of the words of its load balancer
N_LINE = 11  # host: picoseconds per byte << 16 of its port, whatever faults have made of that
N_HEAP = 12  # host: base of its timer heap, entries of two words (time, key)
N_WANTED = 12  # switch: classes, summed over its links, that it wants stopped
N_HEAP_COUNT = 13
N_READY_MASK = 14  # host: classes that have flows ready to send
N_READY_HEAD = 16  # host: first ready flow of each class (8 words), -1 = none
N_READY_TAIL = 24  # host: last ready flow of each class (8 words)
N_STILL = 33  # host: 1 while it stands still (neither sends nor takes what arrives)
N_HELD_HEAD = 34  # host: packets that arrived meanwhile, entries of the pool
N_HELD_TAIL = 35
N_HELD = 36  # host: how many
N_PULL_HEAD = 37  # host: first and last receiver that wants pulls sent (bases of their records), 0 = none
N_PULL_TAIL = 38
N_PULL_AT = 39  # host: no pull may be sent before this time
N_SLOTS = 33  # switch that sums: slots that are free ...
N_SLOTS_LEAST = 34  # ... and the fewest that ever were
N_SUMMED = 35  # switch: data packets that were added to a slot and went no further
N_UNSUMMED = 36  # switch: data packets of fans that went on by themselves
N_COPIED = 37  # switch: data packets that it made of those for all of a fan
SWITCH, HOST = 1, 0

# --- port: an egress port and the link behind it ----------------------------------------------------------------
# What every packet needs comes first: two cache lines, with the first class in the second one.
PORT_WORDS = 64
P_TAIL = 0  # packets ever put on the link: producer's end of the ring
P_BUSY = 1  # the transmission in progress ends here
P_QUEUE = 2  # waiting bytes << 8 | mask of the classes that have packets
P_SPEED = 3  # picoseconds per byte << 16
P_LATENCY = 4
P_RING = 5  # base of the ring, entries of three words (time, A, B)
P_SHAPE = 6  # ring mask | SHAPE_ flags | position of the node at the far end << 32
P_SEEN = 7  # the consumer's end of the ring when last looked at
P_BYTES = 8  # bytes transmitted
P_FLAGS = 9  # PORT_FLAG_, last class << 8
P_LIMIT = 10  # buffer limit in bytes, over all classes
P_PEAK = 11  # most bytes that ever waited
P_CLASSES = 12  # the records of up to eight classes
P_LOSS = 44  # random loss: probability << 32
P_ID = 45  # directed link index
P_KEY = 46  # key of the loss draws; their counter is the number of packets ever transmitted
P_DROP_TAIL = 47
P_DROP_SELECTIVE = 48
P_DROP_LINK = 49
P_MARKS = 50
P_SPILL = 51  # base of the spill ring, for when the ring is full
P_SPILL_MASK = 52
P_SPILL_TAIL = 53
P_HEAD = 54  # where the consumer keeps its counters (HEADS)
P_RED_KEY = 55  # key of the draws for marks
P_TESTS = 56  # how many there were
P_NODE = 57  # base of the node it belongs to
P_CONTROL_MARKS = 59  # of P_MARKS, those of control packets
P_TIED = 60  # when packets last reached it that have arrived at the same time as others
P_MORE = 58  # base of its words that most runs do not need (X_)
CLASS_WORDS = 4
C_HEAD = 0  # pool entry
C_TAIL = 1
C_BYTES = 2
C_THRESHOLD = 3  # at or above: mark important, drop droppable packets; -1 = never
MORE_WORDS = 56
X_TURN = 0  # round robin: class whose turn it is | granted << 3
X_SIGNAL = 1  # a pause frame is to be sent here
X_WANTED = 2  # classes that the far end is to stop sending to this node
X_LIMIT = 3  # pause: above so many bytes of a class the far end is told to stop ...
X_PAUSED = 4  # classes that the far end does not want
X_PAUSES = 5  # pause frames that arrived for this port and stopped something
X_TRIMMED = 6  # packets cut to their headers
X_DEAF = 7  # 1 while the opposite link is cut: what its frames said holds no more, nor what late ones say
X_CAUSES = 8  # drops of the causes from CAUSE_EVICTED on
X_DEFICIT = 16  # round robin: bytes that a class may still send
X_QUANTUM = 24  # ... and that it gets per turn, 0 = strictly first
X_HELD = 32  # bytes of each class that came in by the opposite link and wait anywhere in the switch
X_ROOM = 40  # ... and so many more are accepted until it has stopped
X_DELAYS = 41  # base of the counts of waiting times
DELAY_BINS = 128  # four to the octave, from DELAY_FIRST on; the first one has all that is shorter
DELAY_FIRST = 10  # 2**10 ps
SHAPE_RING = 0xFFFFFF
SHAPE_LOSSY, SHAPE_TRACED, SHAPE_SPILLING = 1 << 24, 1 << 25, 1 << 26
SHAPE_DOWN = 1 << 27  # the cable is cut: what is sent is lost
PORT_FLAG_SELECTIVE, PORT_FLAG_ACTIVE, PORT_FLAG_STAMPS = 1, 2, 4
RING_WORDS = 3
POOL_WORDS = 3  # next, A, B; more in runs that need more: see `core.bound`

# --- consumer's end of a link, one per ingress link of a node
HEAD_WORDS = 8  # the first: packets taken from the ring
HEAD_RING = 4  # base of the ring, as P_RING, and its mask: its next entries can be fetched before the port's words
HEAD_MASK = 5
HEAD_SPILL = 1  # packets taken from the spill ring
HEAD_RING_FREE = (
    2  # the same, but published only when the packets have been read: the producer may use these places
)
HEAD_SPILL_FREE = 3

# --- thread -----------------------------------------------------------------------------------------------------
THREAD_WORDS = 64
T_FREE = 0  # free list of its pool
T_BUMP = 1  # pool words never used yet
T_BUMP_END = 2
T_FIRST = 4  # first position it owns
T_COUNT = 5  # positions it owns
T_DONE = 7  # deliveries logged: entries of DONE_WORDS
T_DONE_BASE = 8
T_DROPS = 9  # drops logged: entries of DROP_WORDS
T_DROPS_BASE = 10
T_TRACE = 11  # packet log entries of TRACE_WORDS
T_TRACE_BASE = 12
T_KEYS = 13  # scratch: sort keys
T_ADDRESS = 14  # scratch: ring entries
T_BUCKETS = 15  # scratch: counts of the bucket sort
T_LOG_LIMIT = 16  # entries any log may hold before the engine has to return
T_PLAYED = 20  # how many of the deliveries logged the player of programs has seen
T_SPARE = 17  # second scratch for keys
T_PORTS = 19  # scratch: the egress ports of a switch's arrivals
T_BACK = 18  # scratch: the port opposite to the link that a packet came by
T_EARLIEST = 24  # earliest arrival it has put on any link in this window
T_DELIVERED = 25  # earliest delivery, or sender's end, in this window that Python has to hear of
T_WAKE = 26  # base of the half of the wake flags that the next window reads
T_WORK = 27  # packets handled in this window
T_TIE_KEYS = 29  # scratch: what breaks ties of the link that a packet came by
T_TOTAL = 30  # packets handled in all windows
T_TIES = 28  # arrivals so far that a draw has put behind others of their time, where that mattered
T_SLOT = 32  # what it publishes at the barrier, two halves of 8 words: next, delivered, full, work, to be played
T_CLAIM = 48  # how many of its nodes have been claimed in this window, two halves of 8 words
DONE_WORDS = 4  # time, flow, 0 delivered | 1 sender finished, received bytes
DROP_WORDS = 4  # time, port id | cause << 32, A, B
TRACE_WORDS = 5  # start time, port id, A, B, event
DELIVERED, FINISHED = 0, 1
CAUSE_TAIL, CAUSE_SELECTIVE, CAUSE_LINK, CAUSE_EVICTED, CAUSE_DOWN, CAUSE_NO_ROUTE = 0, 1, 2, 3, 4, 5

# --- sender and receiver: one record each per flow --------------------------------------------------------------
SENDER_WORDS = 80
S_DATA = 0  # word A of its data packets (full size)
S_PACKETS = 1  # packets of the message
S_LAST = 2  # bytes on the wire of the last packet
S_BITS = 3  # base of its bitmaps
S_WORDS = 4  # words of one bitmap (32 packets to a word)
S_KIND = 5  # index of the transport in the specialised set | number of the parameter set << SET_SHIFT
S_ORDER = 6  # number of the message << KEY_ORDER: decides the order of equal times
S_NEXT = 7  # next flow in the host's ready list, -1 = last
S_LISTED = 8  # 1 while it is in the ready list
S_PACE = 9  # no packet may start before this time
S_GAP = 10  # picoseconds per byte << 16 between packet starts, 0 = as fast as the port
S_TIMER = 11  # the transport wants on_timer at this time, 0 = never
S_ARMED = 12  # the entry of the host's heap that watches S_TIMER, 0 = none
S_DONE = 13  # 1 when there is nothing more to send
S_SENT = 14  # packets put on the wire
S_HEARD = 15  # control packets that came back
S_PEER = 16  # base of the receiver's bitmaps
S_LINE = 17  # picoseconds per byte << 16 of the host's port
S_TAGS = 18  # which packets are important: base of a bitmap, 0 = none, 1 = all
S_HOME = 19  # base of the words of its message in a program, where a queue releases it; 0 = none
S_TIMEOUTS = 20  # retransmission time-outs that the message met; a transport counts them in `on_timer`
S_USER = 21  # first word that belongs to the transport
SENDER_USER_WORDS = 35
S_RIDER = (
    56  # 22 bits that every data packet carries in its argument; `pull` sets it for the packet it returns
)
S_STAMPS = 57  # base of its slots for what switches write about its packets, 0 = none
S_SLOTS = 58  # how many slots - 1, a mask: a packet's slot is its rider & this
S_PATHS = 59  # 5 words of the load balancer's
S_STREAM = 64  # the sender's record of the stream that carries the message (a stream: its own), 0 = none

# streams: a connection that carries message after message has a record of its own at either end, and its transport
# works on those; the records of the messages hold what is theirs alone. Packets of a stream are counted through from
# the first message to the last. A transport counts from S_FIRST (R_FIRST) on, lest its bitmaps grow for ever
S_FIRST = 65  # message: number of its first packet in the stream; stream: packets no longer counted by its transport
S_BEHIND = 66  # message: the one behind it, 0 = none
S_FRESH = 67  # message: packets sent for the first time
S_FRONT = 68  # stream: the first message that has not been acknowledged as a whole, 0 = none
S_BACK = 69  # stream: the last message
S_AT = 70  # stream: the message that its next new packet belongs to, 0 = none yet
S_RETRANSMITTED = 71  # stream: the message that a packet was last sent again of, 0 = none
S_TOTAL = 72  # stream: number of the first packet of the next message
S_BEGUN = 73  # stream: 1 once it has had a message
S_LAST_SENT = 74  # stream: when a packet was last sent
S_PAIR = 75  # base of the words that all messages of its transport between its two hosts share, 0 = none
S_GROUP = 76  # base of the record of its group (a group: its own), 0 = none
# groups (`core.group`): the messages of a pair in one class, which take their turns at the NIC as one. The record
# of a group has the oldest message with something to send in S_FRONT, the youngest in S_BACK; S_BEHIND links them
S_ALLOWED = 77  # payload bytes that may be missing at delivery
S_TURN = 78  # which one it is of the messages that carry the same, one after the other: what rotates, rotates by it
S_OPEN = 79  # stream: packets of the messages of it that have records
S_SINCE = 79  # message: ties of its packets are broken by the time since then; 0: by the time
S_UNA = S_USER  # where a transport that can carry streams keeps the first packet that is not acknowledged ...
S_NXT = S_USER + 1  # ... and the next new one
STREAM_SPAN = 1 << 20  # packets of a stream that may be sent beyond the first that is not acknowledged

RECEIVER_WORDS = 56
R_CONTROL = 0  # word A of its control packets
R_PACKETS = 1
R_BYTES = 2  # payload bytes of the message
R_PAYLOAD = 3  # payload bytes of a full packet
R_BITS = 4  # base of its bitmaps
R_WORDS = 5
R_KIND = 6
R_TAGS = 7  # as S_TAGS
R_ALLOWED = 8  # payload bytes that may be missing at delivery
R_GOT = 9  # payload bytes received
R_DONE = 10  # 1 when the message is delivered
R_ARRIVED = 11  # data packets that arrived
R_SENT = 12  # control packets sent
R_IMPORTANT = 13  # important packets of the message
R_TELL = 14  # bits TELL_*
R_EVENT = 15  # base of the event that its delivery is, where something follows from it; 0 = none
R_LEFT = 16  # base of the count of the deliveries left in its step of a program; 0 = of no program
R_MARKED = 17  # data packets that arrived with a mark
R_USER = 18  # first word that belongs to the transport
RECEIVER_USER_WORDS = 14
R_PULLS = 32  # pulls that wait for their turn; a transport may set it to 0
R_PULLED = 33  # pulls sent
R_PULL_NEXT = 34  # next receiver in the host's list, 0 = last
R_PULL_LISTED = 35  # 1 while it is in that list
R_TRIMMED = 36  # headers that arrived without their payload
R_FRAME = 37  # bytes on the wire of its largest data packet: a pull is worth so much of the host's line
R_STREAM = 38  # the receiver's record of the stream that carries the message (a stream: its own), 0 = none
R_FIRST = 39  # as S_FIRST
R_BEHIND = 40  # message: the one behind it of those of which something has arrived, 0 = none
R_KNOWN = 41  # message: 1 once something of it has arrived
R_FRONT = 42  # stream: the first message of which something but not all has arrived, 0 = none
R_BACK = 43  # stream: the last one
R_TIMER = 44  # its transport wants on_late at this time, 0 = never
R_ARMED = 45  # the entry of the host's heap that watches R_TIMER, 0 = none
R_LAST = 46  # words A and B of the last data packet, for late answers
R_RIDER = 48  # what rode on it, where receivers may put off their answers
R_PAIR = 49  # base of the words that the messages of its transport between its two hosts share here, 0 = none
R_HOST = 50  # base of those that all messages of its transport to this host share
R_POOL = 51  # number of the budget that R_ALLOWED is a part of, lowest bit: which of its pair's two; 0 = of none
R_MOST = 52  # payload bytes that may be missing at delivery if the budget has them left over
R_FAN = 53  # base of the words of its fan, 0 = none
R_FAN_PLACE = 54  # which of the fan it is
R_CUMULATIVE = R_USER  # where a transport that can carry streams keeps the first packet that has not arrived

# what a pair shares at its sender; a transport's own words begin at PAIR_USER
PAIR_NEXT = 0  # no packet of the pair may start before this time
PAIR_GAP = 1  # picoseconds per byte << 16 between packet starts, 0 = as fast as the port
PAIR_USER = 2

# --- fans: messages of the same contents between one host and many others, which switches sum up on their way to it, or
# make of one on the way from it (`core.fan`). A fan begins with the station at which all of them meet; FAN_WORDS, then
# MEMBER_WORDS for each message. A station is a switch at which some of a fan meet: those that hang on it, or all
STATION_NODE = 0  # base of the switch
STATION_SIZE = 1  # messages that meet there
STATION_FIRST = 2  # place of the first of those for which it makes a packet of one from the one host
STATION_COPIES = 3  # how many those are
STATION_AT = 4  # base of what it knows of each packet, FAN_STRIDE words each
STATION_WORDS = 5
FAN_SIZE = STATION_SIZE
FAN_OUT = 5  # 1: from one host to many
FAN_AT_HOST = 6  # base of what the one host knows of each packet
FAN_STRIDE = 7
FAN_STARTED = 8  # from one host: messages that have started there
FAN_CUMULATIVE = 9  # below it all packets are there at the one host of all
FAN_OVER = 10  # 1: no packet of any of them is left
FAN_WORDS = 11
MEMBER_WORDS = 6
F_RECORD = 0  # base of its receiver's record, 0 = none yet
F_LEAF = 1  # base of the station where it first meets others, 0 = only where all do
F_SPARE = 2  # packets that the station of all made of it, less those that went no further there
F_NEXT = 3  # place of the next one for which that makes packets, in a circle
F_LEAF_SPARE = 4  # the same of its first station
F_LEAF_NEXT = 5
# what is known of a packet: PACKET_ verdict 2 | mark 1 | unused 5 | contributors 20 | how often copies were made of it,
# from PACKET_COPIED on; then a bit for each contributor
PACKET_HELD, PACKET_PASSED = 1, 2
PACKET_VERDICT = 3
PACKET_MARK = 2
PACKET_COUNT = 8
MASK_PACKET_COUNT = (1 << 20) - 1
PACKET_COPIED = 28

TELL_DELIVERED = 1  # Python has to hear of the delivery before its host could react to it
TELL_FINISHED = 2  # and of the sender's end, before its own host could

# --- what switches write about a packet (in-band telemetry): a slot of SLOT_WORDS per packet under way
SLOT_WORDS = 32
SLOT_HOPS = 0  # switches so far; then STAMP_WORDS for each, from SLOT_FIRST on
SLOT_FIRST = 1
STAMP_WORDS = 5
STAMP_PORT, STAMP_QUEUE, STAMP_BYTES, STAMP_TIME, STAMP_SPEED = 0, 1, 2, 3, 4
STAMP_MOST = 6  # switches that a slot has room for

PARAM_WORDS = 32  # one parameter set: a transport's numbers for flows of one base round trip and line
SET_SHIFT = 8

# --- packet words -----------------------------------------------------------------------------------------------
# A: what switches look at. destination 18 | size 14 | kind 3 | priority 3 | important 1 | ce 1 | echo 1 | trimmed 1 |
# entropy 16 | logged 1 | stands for all of its fan 1 | stands for those that meet at its first station 1
A_SIZE = 18
A_KIND = 32
A_PRIORITY = 35
A_IMPORTANT = 38
A_CE = 39
A_ECHO = 40
A_TRIMMED = 41
A_ENTROPY = 42
A_LOGGED = 58
A_ALL = 59
A_LEAF = 60
MASK_DESTINATION = 0x3FFFF
MASK_SIZE = 0x3FFF
# B: what transports look at. flow 20 | sequence 22 | argument 22
B_SEQUENCE = 20
B_ARGUMENT = 42
MASK_FLOW = MAX_FLOWS  # the last number is that of packets without a flow
MASK_SEQUENCE = MAX_PACKETS
MAX_HOSTS = MASK_DESTINATION + 1
# packet kinds. PAUSE belongs to the link: it has no flow, and its argument is the set of classes to stop
DATA, ACK, STOP, BITMAP, PROBE, NACK, PULL, PAUSE = 0, 1, 2, 3, 4, 5, 6, 7

FOREVER = 1 << 61
# heap keys: what 2 | base of the sender record 35 | number of the message 26, lowest first: entries of one time come
# out by message, and within one starts before releases before timers, whichever records the messages have. Releases of
# groups come before all others, with class 3 | oldest message 23, less GROUPS_FIRST, for the number of the message: all
# groups of a pair are released at the same time, and the first to be sends
KEY_ORDER = 37
KEY_CLASS = 23
GROUPS_FIRST = 1 << 26
MASK_KEY_SENDER = (1 << KEY_ORDER) - 1
MASK_KEY_NUMBER = (1 << 26) - 1
WHAT_START, WHAT_PACE, WHAT_TIMER, WHAT_PULL = 0, 1, 2, 3
# what a sender's `pull` may answer beside a sequence number
BLOCKED = -1
PULL_PROBE = 1 << 40  # plus the argument: send a probe now

# --- programs (`gradwire.experiment.program`), played by `core.play`
TIMER_WORDS = 3
FIRED = -1
EVENT_WORDS = 10
E_NEEDS = 0  # firings it waits for; FIRED when it has happened
E_AFTER = 1  # base of the list of events that count it, and their number
E_AFTER_COUNT = 2
E_POSTS = 3  # base of the list of messages that it posts, and their number
E_POSTS_COUNT = 4
E_STATION = 5  # base of its station (a word: busy until then), 0 = firing takes no work
E_EFFORT = 6
E_WAITER = 7  # base of the process that waits for it, 0 = none
E_AT = 8  # while it fires: how many of those after it have counted
E_PARENT = 9  # while it fires: the event it follows from, 0 = none
MESSAGE_WORDS = 9
G_FLOW = 0  # its sender's record, once it has had one; 0 = none yet
G_NODE = 1  # base of its host
G_TO = 2  # the host that it goes to | what is S_TURN << A_SIZE
G_QUEUE = 3  # base of the queue that releases it, 0 = none
G_RANK = 4
G_VARIANT = 5  # base of what it has in common with others of its step
G_READY = 6  # when it was ready, -1 = not yet
G_RELEASED = 7  # when it starts, -1 = not released yet
G_DONE = 8  # base of the event that counts when its sender is done, 0 = none
VARIANT_WORDS = 32
V_BYTES = 0
V_PACKETS = 1
V_KIND = 2  # as S_KIND
V_PRIORITY = 3
V_TAGS = 4  # as S_TAGS
V_IMPORTANT = 5  # important packets
V_ALLOWED = 6  # as R_ALLOWED, R_MOST, R_POOL
V_MOST = 7
V_POOL = 8
V_TELL = 9
V_LOGGED = 10  # 1: its packets are noted
V_SLOTS = 11  # slots for stamps
V_LEFT = 12  # as R_LEFT
V_MESSAGES = 13  # base of the words of the first message of its step, and the number of that
V_FIRST = 14
V_EVENTS = 15  # base of the events of the step, the first of which are the deliveries; 0 = nothing follows from any
V_IDLE = 16  # 1: a delivery from which nothing follows is no event
V_STREAM = 17  # base of the sender's record of its stream, 0 = none
V_ENTROPY = 18  # path entropy of that, -1 = every message draws its own
V_PAIR = 19  # what its pair has: as S_PAIR, S_GROUP, R_PAIR, R_HOST
V_FANS = 23  # base of the fans of the messages of its step, two words each: as R_FAN, R_FAN_PLACE; 0 = none has one
V_SINCE = 24  # as S_SINCE, of messages of no step
LEFT_WORDS = 4  # of a step: deliveries that are left, the time of the last one so far, messages that have no records
LEFT_SINCE = 3  # any more, and when the first of its processes began it, where ties go by that
KIND_WORDS = 16
KIND_PAYLOAD = 0  # payload bytes of a full packet
KIND_OVERHEAD = 1  # bytes of headers of a data packet
KIND_CONTROL = 2  # word A of its control packets, without destination and entropy
KIND_SENDER_BITMAPS = 3
KIND_RECEIVER_BITMAPS = 4
KIND_PROBES = 5  # word of a sender's record that counts probes, 0 = none
KIND_FRESH = 6  # ... and packets sent for the first time
KIND_LATE = 7  # 1: receivers set timers
# --- the book: what is kept of every message
BOOK_WORDS = 15
B_SRC, B_DST, B_BYTES, B_PACKETS, B_TRANSPORT = 0, 1, 2, 3, 4
B_FLOW = 5  # number of its records, -1 = none
B_STATE = 6  # STATE_: delivered, its sender is done
B_END = 7  # when it was delivered, -1 = not yet
B_GOT, B_SENT, B_RETRANSMITTED, B_TAGS, B_MARKED, B_TRIMMED, B_TIMEOUTS = 8, 9, 10, 11, 12, 13, 14
STATE_DELIVERED, STATE_DONE = 1, 2
QUEUE_WORDS = 5
Q_HEAP = 0  # base of its heap, entries of two words (rank | order of readiness, base of the message's words)
Q_COUNT = 1
Q_OFFERED = 2  # messages it has ever had
Q_CREDIT = 3  # bytes that may be under way
Q_UNDER_WAY = 4
PROCESS_WORDS = 13
W_AT = 0  # base of its next operation
W_END = 1  # end of what is known of its course ...
W_NEXT = 2  # ... and what comes then, 0 = not known yet
W_NEXT_END = 3
W_BEGUN = 4  # stretches of its course that it has come to the end of
W_STARVED = 5  # 1 when it has come to the end of what is known
W_ENDED = 6  # ... and when
W_SLOW = 7  # how many times longer computing takes, times SLOW_UNIT
W_COMPUTED = 8  # ps spent computing since it was noted last
W_TIMES = 9  # when it came to the end of the last four stretches, by turns
SLOW_UNIT = 1_000_000
OPERATION_WORDS = 2  # what, and of what: ps, the base of an event, or that of a word for the time
O_COMPUTE, O_WAIT, O_FIRE, O_UNTIL, O_NOTE, O_COMPUTED, O_BEGIN = 0, 1, 2, 3, 4, 5, 6
