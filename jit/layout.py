"""Layout of the engine's state: the index of every word.

The whole state of a run is **one flat array of 64-bit integers**, `M`. Compiled code, Python code and the oracle
(`gradwire.testing`) use the same words, so nothing is converted, and a snapshot of a run is a copy of one array.
Records are laid out by hand: the index of a record's first word is its *base*, and a field is a constant added to the
base, so `M[port + P_BUSY]` reads like a C struct access and compiles to one.

With forty arrays instead of one, a compiled function would spend its time on reference counts, for which two threads
would contend. All words are signed 64-bit integers because Numba and plain Python agree on them.

Units: time in picoseconds, sizes in bytes. Link speed is stored as picoseconds per byte, scaled by 2**16 and rounded
up, so that a transmission takes `ceil(bytes * ps_per_byte)` without a division.
"""

from gradwire.jit.limits import MAX_FLOWS, MAX_PACKETS
from gradwire.scenarios.wire import SPEED_SHIFT as SPEED_SHIFT  # for components

# --- header: the first words of M -------------------------------------------------------------------------------
H_NOW = 0  # everything before this time has been simulated
H_UNTIL = 1  # end of the call (exclusive)
H_WINDOW = 2  # length of a lookahead window, at most the lookahead
H_HOST_LATENCY = 3  # after an event at c that Python must handle, run on to at most c + this
H_SEED = 4
H_HOLDS = 5  # 1: the engine does not return because of the number of packets in its windows
H_PARITY = 6  # the half of the wake flags that the next window reads
H_BUDGET = 7  # return after this many windows
H_STATUS = 8  # reason why the engine returned
H_THREADS = 9  # number of thread records
H_BARRIER = 16  # arrivals at the barrier (own cache line)
H_SENSE = 24  # generation of the barrier (own cache line)
H_GO = 32  # epoch counter that hands a call to the worker threads (own cache line)
H_QUIT = 33  # workers leave their loop, and no thread waits for another
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
H_BLOCK_SHIFT = 54  # log2 of the destinations in a block of the routing tables
H_POSITIONS = 55  # number of nodes: length of one half of the wake flags
H_ORDER = 56  # node bases by position
H_STREAK = 57  # consecutive windows that suit the other mode (all threads, or one) better
H_FLOWLET_GAP = 58  # picoseconds of silence after which a flow may change its path
H_RED_KMAX = 59  # queued bytes from which every packet is marked
H_RED_PMAX = 60  # marking probability just below it << 32
H_SHARED = 61  # bytes of the buffer that a switch's ports share
H_ALPHA = 62  # limit of a queue over the free shared buffer, times ALPHA_UNIT
H_ENTROPIES = 63  # number of path entropies per message that hosts choose among, 0 = any
H_TRIM = 64  # queued bytes from which packets are trimmed to their headers
H_TRIM_SIZE = 65  # bytes of a trimmed packet
H_TRIM_CLASS = 66  # class of trimmed packets
H_HYSTERESIS = 67  # pause: the far end resumes this far below the limit
H_PAUSE_CLASSES = 68  # classes that can be paused
H_BACK = 70  # region: for every entry of INGRESS the port in the opposite direction
H_TIES = 71  # region: for every entry of INGRESS the key that breaks ties between arrivals
H_TIMERS = 80  # programs: base of the heap of timers, entries of TIMER_WORDS (time, number, kind)
H_TIMER_COUNT = 81
H_TIMER_SET = 82  # timers set so far
H_TIMER_NEXT = 83  # time of the first one, FOREVER if there is none
H_SORT = 84  # scratch: reported events, as a heap of the same kind
H_SOON = 85  # the earliest consequence of the events played last
H_TOLD = 86  # the earliest of them that Python must handle
H_SORTED = 87  # entries of H_SORT
H_STARVED = 88  # base of the process at whose schedule's end the player has stopped, 0 = none
H_WRONG = (
    89  # 1 + number (sim.engine.guarded_rules.GUARDED_FUNCTIONS) of the function with an invalid return value, 0 = none
)
H_WRONG_OWNER = 90  # number of its transport
H_WRONG_VALUE = 91  # its return value
H_WRONG_LIMIT = 92  # exclusive upper limit of the value
H_SINCE = 93  # 1 if some messages' ties depend on the time since their iteration began (S_SINCE)
H_NOTES_TIES = 94  # 1: packets ordered by draws are counted (T_TIES)
H_LIMITS = 96  # bytes that each class may use of its port's buffer, or of the shared one (8 words)
H_BOOK = 104  # address of the message log (`sim.engine.memory.message_log`), rows of BOOK_WORDS
H_BOOK_FIRST = 105  # number of the message in its first row
H_FLOW_KEY = 106  # key of the messages' path entropies
H_USED = 107  # flow records ever used: the records from here on are zeros
H_FREE = 108  # base of the stack of free record numbers, and their count
H_FREE_COUNT = 109
H_DROPPED = 110  # region: packets lost of the message of each record, by record number
H_CLOSING = 111  # base of the list of records with a delivered message and a finished sender, and their count
H_CLOSING_COUNT = 112
H_TRANSPORTS = 113  # region: the transports of the run, KIND_WORDS each
H_ARENA = 114  # region: the first free block of every size class; unused memory begins at H_ARENA_NEXT
H_ARENA_NEXT = 115
H_ARENA_END = 116
H_HEAP_NEXT = 117  # free memory for growing heaps of hosts
H_HEAP_END = 118
H_FAILED = 119  # FAILED_: reason why the run cannot continue, 0 = none
H_FAR = 120  # 1 if the state exceeds the caches: the words of the next node are prefetched
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
N_DRAWS = 5  # packets balanced so far: the counter of the random draws
N_ACTIVE = 6  # base of the list of ports with queued packets
N_ACTIVE_COUNT = 7
N_USED = 32  # switch with a shared buffer: queued bytes
N_USED_BY = 40  # ... per class, if classes have limits (8 words)
N_EDGE = 8  # number among the destinations of the routing tables, or -1
N_ROUTE = 9  # switch: base of its row of the routing table, one word for each block of destinations
N_FLOWS = 9  # host: flows that may set timers here
N_KEY = 10  # key of the random draws
N_TABLE = 11  # switch: base of the load balancer's words
N_LINE = 11  # host: picoseconds per byte << 16 of its port, faults included
N_HEAP = 12  # host: base of its timer heap, entries of two words (time, key)
N_WANTED = 12  # switch: classes that it wants paused, summed over its links
N_HEAP_COUNT = 13
N_READY_MASK = 14  # host: classes with flows ready to send
N_READY_HEAD = 16  # host: first ready flow of each class (8 words), -1 = none
N_READY_TAIL = 24  # host: last ready flow of each class (8 words)
N_STILL = 33  # host: 1 while it is paused (neither sends nor processes arrivals)
N_HELD_HEAD = 34  # host: packets that arrived while paused, entries of the pool
N_HELD_TAIL = 35
N_HELD = 36  # host: their number
N_PULL_HEAD = 37  # host: first and last receiver with pulls to send (bases of their records), 0 = none
N_PULL_TAIL = 38
N_PULL_AT = 39  # host: no pull may be sent before this time
N_SLOTS = 33  # aggregating switch: free slots ...
N_SLOTS_LEAST = 34  # ... and their minimum so far
N_SUMMED = 35  # switch: data packets added to a slot and not forwarded
N_UNSUMMED = 36  # switch: data packets of aggregation groups forwarded individually
N_COPIED = 37  # switch: data packets that it made from one packet for a whole group
SWITCH, HOST = 1, 0

# --- port: an egress port and the link behind it ----------------------------------------------------------------
# The words that every packet needs come first: two cache lines, with the first class in the second one.
PORT_WORDS = 64
P_TAIL = 0  # packets ever put on the link: the producer's end of the ring
P_BUSY = 1  # end of the transmission in progress
P_QUEUE = 2  # queued bytes << 8 | mask of the classes with packets
P_SPEED = 3  # picoseconds per byte << 16
P_LATENCY = 4
P_RING = 5  # base of the ring, entries of three words (time, A, B)
P_SHAPE = 6  # ring mask | SHAPE_ flags | position of the node at the far end << 32
P_SEEN = 7  # the consumer's end of the ring when last read
P_BYTES = 8  # bytes transmitted
P_FLAGS = 9  # PORT_FLAG_, last class << 8
P_LIMIT = 10  # buffer limit in bytes, over all classes
P_PEAK = 11  # maximum of queued bytes
P_CLASSES = 12  # the records of up to eight classes
P_LOSS = 44  # random loss: probability << 32
P_ID = 45  # directed link index
P_KEY = 46  # key of the loss draws; their counter is the number of packets ever transmitted
P_DROP_TAIL = 47
P_DROP_SELECTIVE = 48
P_DROP_LINK = 49
P_MARKS = 50
P_SPILL = 51  # base of the spill ring, used when the ring is full
P_SPILL_MASK = 52
P_SPILL_TAIL = 53
P_HEAD = 54  # the consumer's counters (HEADS)
P_RED_KEY = 55  # key of the marking draws
P_TESTS = 56  # their number
P_NODE = 57  # base of its node
P_CONTROL_MARKS = 59  # control packets among P_MARKS
P_TIED = 60  # last arrival time of packets that arrived at the same time as others
P_MORE = 58  # base of the words that most runs do not need (X_)
CLASS_WORDS = 4
C_HEAD = 0  # pool entry
C_TAIL = 1
C_BYTES = 2
C_THRESHOLD = 3  # at or above: mark important, drop droppable packets; -1 = never
MORE_WORDS = 56
X_TURN = 0  # round robin: the current class | granted << 3
X_SIGNAL = 1  # a pause frame is to be sent by this port
X_WANTED = 2  # classes that the far end is to pause
X_LIMIT = 3  # pause: the far end stops above this many bytes of a class ...
X_PAUSED = 4  # classes that the far end has paused
X_PAUSES = 5  # pause frames that arrived for this port and had an effect
X_TRIMMED = 6  # packets trimmed to their headers
X_DEAF = 7  # 1 while the opposite link is cut: pause frames from it are void, late ones too
X_CAUSES = 8  # drops by cause, from CAUSE_EVICTED on
X_DEFICIT = 16  # round robin: bytes that a class may still send
X_QUANTUM = 24  # ... and its bytes per turn, 0 = strict priority
X_HELD = 32  # bytes of each class that came in by the opposite link and are queued in the switch
X_ROOM = 40  # ... and this many more are accepted until it has stopped
X_DELAYS = 41  # base of the histogram of queueing delays
DELAY_BINS = 128  # four per octave, from DELAY_FIRST on; the first one has all shorter delays
DELAY_FIRST = 10  # 2**10 ps
SHAPE_RING = 0xFFFFFF
SHAPE_LOSSY, SHAPE_TRACED, SHAPE_SPILLING = 1 << 24, 1 << 25, 1 << 26
SHAPE_DOWN = 1 << 27  # the cable is cut: packets sent on it are lost
PORT_FLAG_SELECTIVE, PORT_FLAG_ACTIVE, PORT_FLAG_STAMPS = 1, 2, 4
RING_WORDS = 3
POOL_WORDS = 3  # next, A, B; more in runs that need more: see `core.bound`

# --- consumer's end of a link, one per ingress link of a node
HEAD_WORDS = 8  # the first: packets taken from the ring
HEAD_RING = 4  # base of the ring, as P_RING, and its mask: allows prefetching entries before the port's words
HEAD_MASK = 5
HEAD_SPILL = 1  # packets taken from the spill ring
HEAD_RING_FREE = 2  # the same, published only after the packets were read: the producer may reuse these entries
HEAD_SPILL_FREE = 3

# --- thread -----------------------------------------------------------------------------------------------------
THREAD_WORDS = 64
T_FREE = 0  # free list of its pool
T_BUMP = 1  # pool words never used so far
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
T_LOG_LIMIT = 16  # entries of a log at which the engine has to return
T_PLAYED = 20  # logged deliveries that the program player has handled
T_SPARE = 17  # second scratch for keys
T_PORTS = 19  # scratch: the egress ports of a switch's arrivals
T_BACK = 18  # scratch: the port opposite to the link of a packet
T_EARLIEST = 24  # earliest arrival it has put on any link in this window
T_DELIVERED = 25  # earliest delivery or sender's end in this window that Python must handle
T_WAKE = 26  # base of the half of the wake flags that the next window reads
T_WORK = 27  # packets handled in this window
T_TIE_KEYS = 29  # scratch: tie-break keys of the packets' links
T_TOTAL = 30  # packets handled in all windows
T_TIES = 28  # arrivals so far that a draw has put behind others of the same time, if that mattered
T_SLOT = 32  # values published at the barrier, two halves of 8 words: next, delivered, full, work, to be played
T_CLAIM = 48  # number of its nodes claimed in this window, two halves of 8 words
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
S_ORDER = 6  # number of the message << KEY_ORDER: orders equal times
S_NEXT = 7  # next flow in the host's ready list, -1 = last
S_LISTED = 8  # 1 while it is in the ready list
S_PACE = 9  # earliest start of the next packet
S_GAP = 10  # picoseconds per byte << 16 between packet starts, 0 = as fast as the port
S_TIMER = 11  # time of the next call of on_timer, 0 = never
S_ARMED = 12  # the entry of the host's heap for S_TIMER, 0 = none
S_DONE = 13  # 1 if nothing is left to send
S_SENT = 14  # packets put on the wire
S_HEARD = 15  # control packets received
S_PEER = 16  # base of the receiver's bitmaps
S_LINE = 17  # picoseconds per byte << 16 of the host's port
S_TAGS = 18  # important packets: base of a bitmap, 0 = none, 1 = all
S_HOME = 19  # base of the message's words in a program, if a queue releases it; 0 = none
S_TIMEOUTS = 20  # retransmission time-outs of the message; a transport counts them in `on_timer`
S_USER = 21  # first of the 35 words of the transport
S_RIDER = 56  # 22 bits carried in the argument of every data packet; `pull` sets it for the packet it returns
S_STAMPS = 57  # base of the slots for its packets' telemetry, 0 = none
S_SLOTS = 58  # number of slots - 1, a mask: a packet's slot is its rider & this
S_PATHS = 59  # 5 words of the load balancer
S_STREAM = 64  # the sender's record of the message's stream (in a stream's record: itself), 0 = none

# streams: a persistent connection has its own record at either end, which its transport works on; the records of the
# messages hold only per-message state. Packets of a stream are numbered from the first message to the last. A transport
# counts from S_FIRST (R_FIRST) on, so that its bitmaps do not grow forever
S_FIRST = 65  # message: number of its first packet in the stream; stream: packets no longer counted by its transport
S_BEHIND = 66  # message: the next one, 0 = none
S_FRESH = 67  # message: packets sent for the first time
S_FRONT = 68  # stream: the first message not fully acknowledged, 0 = none
S_BACK = 69  # stream: the last message
S_AT = 70  # stream: the message of its next new packet, 0 = none yet
S_RETRANSMITTED = 71  # stream: the message of the last retransmission, 0 = none
S_TOTAL = 72  # stream: number of the first packet of the next message
S_BEGUN = 73  # stream: 1 once it has had a message
S_LAST_SENT = 74  # stream: time of the last transmission
S_PAIR = 75  # base of the words shared by all messages of the transport between its two hosts, 0 = none
S_GROUP = 76  # base of the record of its group (in a group's record: itself), 0 = none
# groups (`core.nic`): the messages of a pair in one class, which share one turn at the NIC. The record of a group has
# the oldest message with packets to send in S_FRONT, the youngest in S_BACK; S_BEHIND links them
S_ALLOWED = 77  # payload bytes that may be missing at delivery
S_TURN = 78  # index among the consecutive messages of the same tensor part; rotating rules rotate by it
S_OPEN = 79  # stream: packets of its messages that have records
S_SINCE = 79  # message: start time for the ties of its packets; 0: ties go by the absolute time
S_UNA = S_USER  # where a transport with streams keeps the first unacknowledged packet ...
S_NXT = S_USER + 1  # ... and the next new one
STREAM_SPAN = 1 << 20  # packets of a stream that may be sent beyond the first unacknowledged one

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
R_DONE = 10  # 1 if the message is delivered
R_ARRIVED = 11  # data packets that arrived
R_SENT = 12  # control packets sent
R_IMPORTANT = 13  # important packets of the message
R_TELL = 14  # bits TELL_*
R_EVENT = 15  # base of the event of its delivery, if something depends on it; 0 = none
R_LEFT = 16  # base of the count of deliveries left in its step of a program; 0 = no program
R_MARKED = 17  # data packets that arrived marked
R_USER = 18  # first of the 14 words of the transport
R_PULLS = 32  # queued pulls; a transport may set it to 0
R_PULLED = 33  # pulls sent
R_PULL_NEXT = 34  # next receiver in the host's list, 0 = last
R_PULL_LISTED = 35  # 1 while it is in that list
R_TRIMMED = 36  # trimmed packets that arrived
R_FRAME = 37  # bytes on the wire of its largest data packet: a pull takes this much of the host's line
R_STREAM = 38  # the receiver's record of the message's stream (in a stream's record: itself), 0 = none
R_FIRST = 39  # as S_FIRST
R_BEHIND = 40  # message: the next one with any arrived packet, 0 = none
R_KNOWN = 41  # message: 1 once any packet of it has arrived
R_FRONT = 42  # stream: the first message that has arrived in part, 0 = none
R_BACK = 43  # stream: the last one
R_TIMER = 44  # time of the next call of on_late, 0 = never
R_ARMED = 45  # the entry of the host's heap for R_TIMER, 0 = none
R_LAST = 46  # words A and B of the last data packet, for late acknowledgements
R_RIDER = 48  # its rider, if receivers may delay acknowledgements
R_PAIR = 49  # base of the words shared here by the messages of its transport between its two hosts, 0 = none
R_HOST = 50  # base of the words shared by all messages of its transport to this host
R_POOL = 51  # number of the budget that R_ALLOWED is part of, lowest bit: which of the pair's two; 0 = none
R_MOST = 52  # payload bytes that may be missing at delivery if the budget has them left
R_FAN = 53  # base of the words of its aggregation group, 0 = none
R_FAN_PLACE = 54  # its index in the group
R_CUMULATIVE = R_USER  # where a transport with streams keeps the first packet that has not arrived

# words that a pair shares at its sender; a transport's words begin at PAIR_USER
PAIR_NEXT = 0  # earliest start of the pair's next packet
PAIR_GAP = 1  # picoseconds per byte << 16 between packet starts, 0 = as fast as the port
PAIR_USER = 2

# --- fans (aggregation groups): messages between one host and many others that switches sum on the way to it, or
# replicate on the way from it (`core.fan`). A fan begins with the station (aggregation node) of all its messages;
# FAN_WORDS, then MEMBER_WORDS for each message. A station is a switch where messages of a fan meet: those of the hosts
# connected to it, or all
STATION_NODE = 0  # base of the switch
STATION_SIZE = 1  # messages that meet there
STATION_FIRST = 2  # index of the first message for which it replicates packets from the one host
STATION_COPIES = 3  # number of these messages
STATION_AT = 4  # base of its state of each packet, FAN_STRIDE words each
STATION_WORDS = 5
FAN_SIZE = STATION_SIZE
FAN_OUT = 5  # 1: from one host to many
FAN_AT_HOST = 6  # base of the one host's state of each packet
FAN_STRIDE = 7
FAN_STARTED = 8  # from one host: messages that have started there
FAN_CUMULATIVE = 9  # all packets below it have arrived at the one host for all messages
FAN_OVER = 10  # 1: no packet of any message is left
FAN_WORDS = 11
MEMBER_WORDS = 6
F_RECORD = 0  # base of its receiver's record, 0 = none yet
F_LEAF = 1  # base of the station where it first meets others, 0 = only where all do
F_SPARE = 2  # packets that the station of all replicated for it, less those dropped there
F_NEXT = 3  # index of the next one for which it replicates packets, in a circle
F_LEAF_SPARE = 4  # the same of its first station
F_LEAF_NEXT = 5
# state of a packet: PACKET_ verdict 2 | mark 1 | unused 5 | contributors 20 | number of replications, from
# PACKET_COPIED on; then a bit for each contributor
PACKET_HELD, PACKET_PASSED = 1, 2
PACKET_VERDICT = 3
PACKET_MARK = 2
PACKET_COUNT = 8
MASK_PACKET_COUNT = (1 << 20) - 1
PACKET_COPIED = 28

TELL_DELIVERED = 1  # Python must handle the delivery before its host could react to it
TELL_FINISHED = 2  # and the sender's end, before its own host could

# --- in-band telemetry of switches about a packet: a slot of SLOT_WORDS per packet in flight
SLOT_WORDS = 32
SLOT_HOPS = 0  # switches so far; then STAMP_WORDS for each, from SLOT_FIRST on
SLOT_FIRST = 1
STAMP_WORDS = 5
STAMP_PORT, STAMP_QUEUE, STAMP_BYTES, STAMP_TIME, STAMP_SPEED = 0, 1, 2, 3, 4
STAMP_MOST = 6  # switches that fit in a slot

PARAM_WORDS = 32  # one parameter set: a transport's numbers for flows of one base round trip and line
SET_SHIFT = 8

# --- packet words -----------------------------------------------------------------------------------------------
# A: for switches. destination 18 | size 14 | kind 3 | priority 3 | important 1 | ce 1 | echo 1 | trimmed 1 |
# entropy 16 | logged 1 | sum of its whole fan 1 | sum of the messages at its first station 1
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
# B: for transports. flow 20 | sequence 22 | argument 22
B_SEQUENCE = 20
B_ARGUMENT = 42
MASK_FLOW = MAX_FLOWS  # the largest number is that of packets without a flow
MASK_SEQUENCE = MAX_PACKETS
MAX_HOSTS = MASK_DESTINATION + 1
# packet kinds. PAUSE belongs to the link: it has no flow, and its argument is the set of classes to stop
DATA, ACK, STOP, BITMAP, PROBE, NACK, PULL, PAUSE = 0, 1, 2, 3, 4, 5, 6, 7

FOREVER = 1 << 61
# heap keys: kind 2 | base of the sender record 35 | number of the message 26, lowest bits first: entries of one time
# are ordered by message, and within a message starts precede releases, and these timers, whatever records the messages
# have. Releases of groups precede all others, with class 3 | oldest message 23, less GROUPS_FIRST, as the message
# number: all groups of a pair are released at the same time, and the first one sends
KEY_ORDER = 37
KEY_CLASS = 23
GROUPS_FIRST = 1 << 26
MASK_KEY_SENDER = (1 << KEY_ORDER) - 1
MASK_KEY_NUMBER = (1 << 26) - 1
WHAT_START, WHAT_PACE, WHAT_TIMER, WHAT_PULL = 0, 1, 2, 3
# return values of a sender's `pull` other than a sequence number
BLOCKED = -1
PULL_PROBE = 1 << 40  # plus the argument: send a probe now

# --- programs (`gradwire.workload.program`), played by `core.play`
TIMER_WORDS = 3
FIRED = -1
EVENT_WORDS = 10
E_NEEDS = 0  # firings it waits for; FIRED once it has happened
E_AFTER = 1  # base of the list of events that depend on it, and their number
E_AFTER_COUNT = 2
E_POSTS = 3  # base of the list of messages that it posts, and their number
E_POSTS_COUNT = 4
E_STATION = 5  # base of its station (a word: busy until then), 0 = firing takes no time
E_EFFORT = 6
E_WAITER = 7  # base of the process that waits for it, 0 = none
E_AT = 8  # while it fires: dependent events already counted
E_PARENT = 9  # while it fires: the event it follows from, 0 = none
MESSAGE_WORDS = 9
G_FLOW = 0  # its sender's record, once assigned; 0 = none yet
G_NODE = 1  # base of its host
G_TO = 2  # the destination host | the S_TURN of the message << A_SIZE
G_QUEUE = 3  # base of the queue that releases it, 0 = none
G_RANK = 4
G_VARIANT = 5  # base of the words shared with other messages of its step
G_READY = 6  # time when it was ready, -1 = not yet
G_RELEASED = 7  # its start time, -1 = not released yet
G_DONE = 8  # base of the event that its sender's end counts for, 0 = none
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
V_LOGGED = 10  # 1: its packets are logged
V_SLOTS = 11  # slots for stamps
V_LEFT = 12  # as R_LEFT
V_MESSAGES = 13  # base of the words of the first message of its step, and the number of that message
V_FIRST = 14
V_EVENTS = 15  # base of the step's events, deliveries first; 0 = nothing depends on any
V_IDLE = 16  # 1: a delivery on which nothing depends is no event
V_STREAM = 17  # base of the sender's record of its stream, 0 = none
V_ENTROPY = 18  # path entropy of the stream, -1 = every message draws its own
V_PAIR = 19  # its pair's words: as S_PAIR, S_GROUP, R_PAIR, R_HOST
V_FANS = 23  # base of the fans of its step's messages, two words each: as R_FAN, R_FAN_PLACE; 0 = none
V_SINCE = 24  # as S_SINCE, of messages without a step
LEFT_WORDS = 4  # of a step: deliveries left, time of the last one so far, messages that no longer have records,
LEFT_SINCE = 3  # and the time when its first process began it, if ties go by that
KIND_WORDS = 16
KIND_PAYLOAD = 0  # payload bytes of a full packet
KIND_OVERHEAD = 1  # bytes of headers of a data packet
KIND_CONTROL = 2  # word A of its control packets, without destination and entropy
KIND_SENDER_BITMAPS = 3
KIND_RECEIVER_BITMAPS = 4
KIND_PROBES = 5  # word of a sender's record that counts probes, 0 = none
KIND_FRESH = 6  # ... and packets sent for the first time
KIND_LATE = 7  # 1: receivers set timers
# --- the message log (book): one row per message
BOOK_WORDS = 15
B_SRC, B_DST, B_BYTES, B_PACKETS, B_TRANSPORT = 0, 1, 2, 3, 4
B_FLOW = 5  # number of its records, -1 = none
B_STATE = 6  # STATE_: delivered, sender done
B_END = 7  # time of delivery, -1 = not yet
B_GOT, B_SENT, B_RETRANSMITTED, B_TAGS, B_MARKED, B_TRIMMED, B_TIMEOUTS = 8, 9, 10, 11, 12, 13, 14
STATE_DELIVERED, STATE_DONE = 1, 2
QUEUE_WORDS = 5
Q_HEAP = 0  # base of its heap, entries of two words (rank | order of readiness, base of the message's words)
Q_COUNT = 1
Q_OFFERED = 2  # messages it has had so far
Q_CREDIT = 3  # bytes that may be in flight
Q_UNDER_WAY = 4
PROCESS_WORDS = 13
W_AT = 0  # base of its next operation
W_END = 1  # end of its known schedule ...
W_NEXT = 2  # ... and the following part, 0 = not known yet
W_NEXT_END = 3
W_BEGUN = 4  # parts of its schedule that it has finished
W_STARVED = 5  # 1 if it has reached the end of its known schedule
W_ENDED = 6  # ... and the time of that
W_SLOW = 7  # factor of compute times, times SLOW_UNIT
W_COMPUTED = 8  # ps spent computing since the last record
W_TIMES = 9  # end times of the last four parts, in turn
SLOW_UNIT = 1_000_000
OPERATION_WORDS = 2  # kind and operand: ps, the base of an event, or that of a word for the time
O_COMPUTE, O_WAIT, O_FIRE, O_UNTIL, O_NOTE, O_COMPUTED, O_BEGIN = 0, 1, 2, 3, 4, 5, 6
