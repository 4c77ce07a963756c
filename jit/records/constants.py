"""Declares constants of the engine's records, values of fields and positions of fields in packed words."""

from gradwire.jit.limits import MAX_FLOWS, MAX_PACKETS
from gradwire.scenarios.wire import SPEED_SHIFT as SPEED_SHIFT  # for components

FOREVER = 1 << 61

# --- the engine
RUNNING, REACHED, EXHAUSTED, LOG_FULL, POOL_FULL, BUSY, QUIET = 0, 1, 2, 3, 4, 5, 6
"""Values of `State.status`."""
FAILED_FLOWS, FAILED_ARENA, FAILED_HEAP, FAILED_ROUTE, FAILED_LATE = 1, 2, 3, 4, 5
"""Values of `State.failure`."""
ARENA_CLASSES = 256
ALPHA_UNIT = 1 << 16
"""The unit of `State.shared_alpha`."""
DELIVERED, FINISHED = 0, 1
"""Values of `DeliveryEntry.what`."""
CAUSE_TAIL, CAUSE_SELECTIVE, CAUSE_LINK, CAUSE_EVICTED, CAUSE_DOWN, CAUSE_NO_ROUTE = 0, 1, 2, 3, 4, 5
"""Causes of losses."""

# --- nodes and ports
SWITCH, HOST = 1, 0
"""Values of `Node.kind`."""
SHAPE_RING = 0xFFFFFF
"""`Port.shape`: mask of the ring; then flags, and from bit 32 on the position of the node at the far end."""
SHAPE_LOSSY, SHAPE_TRACED, SHAPE_SPILLING = 1 << 24, 1 << 25, 1 << 26
SHAPE_DOWN = 1 << 27  # the cable is cut: packets sent on it are lost
PORT_FLAG_SELECTIVE, PORT_FLAG_ACTIVE, PORT_FLAG_STAMPS = 1, 2, 4
"""`Port.flags`; above them the number of the last class, from bit 8 on."""
DELAY_BINS = 128
"""Bins of the histogram of waiting times: four per octave from DELAY_FIRST on; the first one has all shorter ones."""
DELAY_FIRST = 10  # 2**10 ps

# --- flows
SET_SHIFT = 8
"""`Sender.kind`: number of the transport among those of the run | number of its parameter set << SET_SHIFT."""
STREAM_SPAN = 1 << 20
"""Packets of a stream that may be sent beyond the first unacknowledged one."""
TELL_DELIVERED, TELL_FINISHED = 1, 2
"""Flags of `Receiver.notify`: Python must handle the delivery, or the sender's end, before its host could react."""
STAMP_MOST = 6
"""Switches whose stamps fit in a slot."""
BLOCKED = -1
"""Return value of `pull`: nothing may be sent."""
PULL_PROBE = 1 << 40
"""Return value of `pull`, plus the argument: send a probe now."""

# --- heaps of timers: what 2 bits | base of the sender's record 35 | number of the message 26, lowest bits first.
# Entries of one time are ordered by message, and within a message starts precede releases, and these timers, whatever
# records the messages have. Releases of groups precede all others, with class 3 | oldest message 23, less GROUPS_FIRST,
# as the message number: all groups of a pair are released at the same time, and the first one sends
KEY_ORDER = 37
KEY_CLASS = 23
GROUPS_FIRST = 1 << 26
MASK_KEY_SENDER = (1 << KEY_ORDER) - 1
MASK_KEY_NUMBER = (1 << 26) - 1
WHAT_START, WHAT_PACE, WHAT_TIMER, WHAT_PULL = 0, 1, 2, 3

# --- packets: the words are described in `gradwire.jit.records.packets`
MASK_DESTINATION = 0x3FFFF
MASK_SIZE = 0x3FFF
MAX_HOSTS = MASK_DESTINATION + 1
TURN_SHIFT = 18
"""`ProgramMessage.destination`: bits of the destination host below the turn."""
MASK_FLOW = MAX_FLOWS  # the largest number is that of packets without a flow
MASK_SEQUENCE = MAX_PACKETS
DATA, ACK, STOP, BITMAP, PROBE, NACK, PULL, PAUSE = 0, 1, 2, 3, 4, 5, 6, 7
"""Kinds. PAUSE belongs to the link: it has no flow, and its argument is the set of classes to stop."""

# --- aggregation groups: state of a packet: verdict 2 bits | mark 1 | unused 5 | contributors 20 | number of
# replications; then a bit for each contributor
PACKET_HELD, PACKET_PASSED = 1, 2
PACKET_VERDICT = 3
PACKET_MARK = 2
PACKET_COUNT = 8
MASK_PACKET_COUNT = (1 << 20) - 1
PACKET_COPIED = 28

# --- programs
FIRED = -1
"""`Event.needs` once it has happened."""
STATE_DELIVERED, STATE_DONE = 1, 2
"""Flags of `LogRow.status`."""
SLOW_UNIT = 1_000_000
"""The unit of `Process.slowness`."""
O_COMPUTE, O_WAIT, O_FIRE, O_UNTIL, O_NOTE, O_COMPUTED, O_BEGIN = 0, 1, 2, 3, 4, 5, 6
"""Kinds of operations of a process."""
