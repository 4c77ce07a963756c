"""Flow records, written when a message starts, for the player of programs or for Python.

What messages of a step have in common is stored in few records (V_), what differs (ends and number) with the message.
So a message costs a handful of words beforehand, and there are as many flow records as messages under way.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import flow_entropy
from gradwire.jit.layout import (
    A_ENTROPY,
    A_LOGGED,
    A_PRIORITY,
    A_SIZE,
    B_FLOW,
    BOOK_WORDS,
    E_AFTER_COUNT,
    E_POSTS_COUNT,
    EVENT_WORDS,
    F_RECORD,
    FAILED_FLOWS,
    FAILED_HEAP,
    FAN_WORDS,
    G_DONE,
    G_FLOW,
    G_NODE,
    G_QUEUE,
    G_RELEASED,
    G_TO,
    G_VARIANT,
    H_BOOK,
    H_BOOK_FIRST,
    H_FAILED,
    H_FLOW_KEY,
    H_FREE,
    H_FREE_COUNT,
    H_HEAP_END,
    H_HEAP_NEXT,
    H_NEXT,
    H_NODES,
    H_RECEIVERS,
    H_SENDERS,
    H_SINCE,
    H_SOON,
    H_TRANSPORTS,
    H_USED,
    KEY_ORDER,
    KIND_CONTROL,
    KIND_LATE,
    KIND_OVERHEAD,
    KIND_PAYLOAD,
    KIND_RECEIVER_BITMAPS,
    KIND_SENDER_BITMAPS,
    KIND_WORDS,
    LEFT_SINCE,
    MASK_DESTINATION,
    MASK_KEY_NUMBER,
    MAX_FLOWS,
    MEMBER_WORDS,
    MESSAGE_WORDS,
    N_FLOWS,
    N_HEAP,
    N_HEAP_COUNT,
    N_LINE,
    N_POSITION,
    NODE_WORDS,
    R_ALLOWED,
    R_BITS,
    R_BYTES,
    R_CONTROL,
    R_EVENT,
    R_FAN,
    R_FAN_PLACE,
    R_FRAME,
    R_HOST,
    R_IMPORTANT,
    R_KIND,
    R_LEFT,
    R_MOST,
    R_PACKETS,
    R_PAIR,
    R_PAYLOAD,
    R_POOL,
    R_STREAM,
    R_TAGS,
    R_TELL,
    R_WORDS,
    RECEIVER_WORDS,
    S_ALLOWED,
    S_BITS,
    S_DATA,
    S_GROUP,
    S_HOME,
    S_KIND,
    S_LAST,
    S_LINE,
    S_NEXT,
    S_OPEN,
    S_ORDER,
    S_PACKETS,
    S_PAIR,
    S_PEER,
    S_SINCE,
    S_SLOTS,
    S_STAMPS,
    S_STREAM,
    S_TAGS,
    S_TURN,
    S_WORDS,
    SENDER_WORDS,
    SET_SHIFT,
    SLOT_WORDS,
    V_ALLOWED,
    V_BYTES,
    V_ENTROPY,
    V_EVENTS,
    V_FANS,
    V_FIRST,
    V_IDLE,
    V_IMPORTANT,
    V_KIND,
    V_LEFT,
    V_LOGGED,
    V_MESSAGES,
    V_MOST,
    V_PACKETS,
    V_PAIR,
    V_POOL,
    V_PRIORITY,
    V_SINCE,
    V_SLOTS,
    V_STREAM,
    V_TAGS,
    V_TELL,
    WHAT_START,
)
from gradwire.scenarios.wire import MIN_FRAME
from gradwire.sim.engine.memory.atomics import words_at
from gradwire.sim.engine.memory.stretch_allocator import allocate, free
from gradwire.sim.engine.memory.timer_heap import HEAP_FLOW, HEAP_SPARE, push


@njit
def transport_of(M, kind):
    """Return the base of the words of a transport, by S_KIND."""
    return M[H_TRANSPORTS] + (kind & ((1 << SET_SHIFT) - 1)) * KIND_WORDS


@njit
def expect_timers(M, node):
    """Make room in a host's heap for one more flow: three entries per flow, and some to spare."""
    M[node + N_FLOWS] += 1
    base = M[node + N_HEAP]
    need = HEAP_FLOW * M[node + N_FLOWS] + HEAP_SPARE
    if need <= M[base - 1]:
        return
    size = 2 * need
    fresh = M[H_HEAP_NEXT] + 8
    if fresh + 2 * size > M[H_HEAP_END]:
        M[H_FAILED] = FAILED_HEAP
        return
    M[H_HEAP_NEXT] = fresh + 2 * size
    for i in range(2 * M[node + N_HEAP_COUNT]):
        M[fresh + i] = M[base + i]
    M[fresh - 1] = size
    M[node + N_HEAP] = fresh


@njit
def take_record(M):
    """Return the number of a free pair of records, the last one freed if any; -1 if none is free (H_FAILED)."""
    count = M[H_FREE_COUNT]
    if count:
        M[H_FREE_COUNT] = count - 1
        return M[M[H_FREE] + count - 1]
    flow = M[H_USED]
    if flow >= MAX_FLOWS:
        M[H_FAILED] = FAILED_FLOWS
        return -1
    M[H_USED] = flow + 1
    return flow


@njit
def new_record(M, source, destination):
    """Return the number of a new pair of zeroed records without a message, between two hosts (bases of their nodes). -1
    if none is free."""
    flow = take_record(M)
    if flow >= 0:
        f = M[H_SENDERS] + flow * SENDER_WORDS
        for i in range(SENDER_WORDS):
            M[f + i] = 0
        r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
        for i in range(RECEIVER_WORDS):
            M[r + i] = 0
        expect_timers(M, source)
        expect_timers(M, destination)
    return flow


@njit
def write_records(M, g, flow, number):
    """Write the records of a message, or of a stream that looks like one, to number `flow`, which no packet uses any
    more."""
    v = M[g + G_VARIANT]
    kind = transport_of(M, M[v + V_KIND])
    node = M[g + G_NODE]
    packets = M[v + V_PACKETS]
    words = (packets + 31) >> 5
    stream = M[v + V_STREAM]
    f = M[H_SENDERS] + flow * SENDER_WORDS
    r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
    for i in range(SENDER_WORDS):
        M[f + i] = 0
    for i in range(RECEIVER_WORDS):
        M[r + i] = 0
    entropy = M[v + V_ENTROPY]
    if entropy < 0:
        entropy = flow_entropy(M[H_FLOW_KEY], number)
    both = (entropy << A_ENTROPY) | (M[v + V_LOGGED] << A_LOGGED)
    full = M[kind + KIND_PAYLOAD] + M[kind + KIND_OVERHEAD]
    last = max(MIN_FRAME, M[v + V_BYTES] - (packets - 1) * M[kind + KIND_PAYLOAD] + M[kind + KIND_OVERHEAD])
    if stream == 0:
        M[f + S_BITS] = allocate(M, words * M[kind + KIND_SENDER_BITMAPS])
        M[f + S_PEER] = allocate(M, words * M[kind + KIND_RECEIVER_BITMAPS])
    M[f + S_DATA] = (M[g + G_TO] & MASK_DESTINATION) | (full << A_SIZE) | (M[v + V_PRIORITY] << A_PRIORITY) | both
    M[f + S_PACKETS] = packets
    M[f + S_LAST] = last
    M[f + S_WORDS] = words
    M[f + S_KIND] = M[v + V_KIND]
    M[f + S_ORDER] = (number & MASK_KEY_NUMBER) << KEY_ORDER
    M[f + S_NEXT] = -1
    M[f + S_LINE] = M[node + N_LINE]
    M[f + S_TAGS] = M[v + V_TAGS]
    M[f + S_HOME] = g if M[g + G_QUEUE] or M[g + G_DONE] else 0
    M[f + S_ALLOWED] = M[v + V_ALLOWED]
    M[f + S_TURN] = M[g + G_TO] >> A_SIZE
    M[f + S_PAIR] = M[v + V_PAIR]
    M[f + S_GROUP] = M[v + V_PAIR + 1]
    M[f + S_STAMPS] = allocate(M, M[v + V_SLOTS] * SLOT_WORDS)
    M[f + S_SLOTS] = M[v + V_SLOTS] - 1
    M[r + R_CONTROL] = ((node - M[H_NODES]) // NODE_WORDS) | M[kind + KIND_CONTROL] | both
    M[r + R_PACKETS] = packets
    M[r + R_BYTES] = M[v + V_BYTES]
    M[r + R_PAYLOAD] = M[kind + KIND_PAYLOAD]
    M[r + R_BITS] = M[f + S_PEER]
    M[r + R_WORDS] = words
    M[r + R_KIND] = M[v + V_KIND]
    M[r + R_TAGS] = M[v + V_TAGS]
    M[r + R_ALLOWED] = M[v + V_ALLOWED]
    M[r + R_MOST] = M[v + V_MOST]
    M[r + R_POOL] = M[v + V_POOL]
    M[r + R_IMPORTANT] = M[v + V_IMPORTANT]
    M[r + R_TELL] = M[v + V_TELL]
    M[r + R_FRAME] = full if packets > 1 else last
    M[r + R_LEFT] = M[v + V_LEFT]
    M[r + R_PAIR] = M[v + V_PAIR + 2]
    M[r + R_HOST] = M[v + V_PAIR + 3]
    if stream:
        M[f + S_STREAM] = stream
        M[r + R_STREAM] = M[H_RECEIVERS] + (stream - M[H_SENDERS]) // SENDER_WORDS * RECEIVER_WORDS


@njit
def _wider(M, bits, words, bitmaps, new):
    """Enlarge a stream's bitmaps; the words at `bits` and `words` hold their base and length."""
    old = M[bits]
    had = M[words]
    base = allocate(M, new * bitmaps)
    if M[H_FAILED]:
        return
    if had:
        for bitmap in range(bitmaps):
            for i in range(had):
                M[base + bitmap * new + i] = M[old + bitmap * had + i]
        free(M, had * bitmaps, old)
    M[bits] = base
    M[words] = new


@njit
def _join(M, s, kind, packets):
    """Add the packets of one more message to a stream. Its bitmaps have room for twice as many packets as may be open,
    since the engine moves them down when they are full."""
    M[s + S_OPEN] += packets
    need = 2 * M[s + S_OPEN] + 64
    r = M[H_RECEIVERS] + (s - M[H_SENDERS]) // SENDER_WORDS * RECEIVER_WORDS
    if need <= M[r + R_PACKETS]:
        return
    words = 2
    while words << 5 < need:
        words *= 2
    _wider(M, s + S_BITS, s + S_WORDS, M[kind + KIND_SENDER_BITMAPS], words)
    _wider(M, r + R_BITS, r + R_WORDS, M[kind + KIND_RECEIVER_BITMAPS], words)
    M[s + S_PEER] = M[r + R_BITS]
    M[r + R_PACKETS] = words << 5


@njit
def _event_of(M, v, i):
    """Return the event that is the delivery of the i-th message of a step; 0 if there is none."""
    e = M[v + V_EVENTS]
    if e == 0:
        return 0
    e += EVENT_WORDS * i
    if M[v + V_IDLE] and M[e + E_AFTER_COUNT] + M[e + E_POSTS_COUNT] == 0:
        return 0
    return e


@njit
def _join_fan(M, v, i, r):
    """Register the i-th message of a step with its aggregation group, if it has one."""
    fans = M[v + V_FANS] + 2 * i
    fan = M[fans]
    if fan:
        M[r + R_FAN] = fan
        M[r + R_FAN_PLACE] = M[fans + 1]
        M[fan + FAN_WORDS + MEMBER_WORDS * M[fans + 1] + F_RECORD] = r


@njit
def open_message(M, g):
    """Write the records of a message that starts at G_RELEASED, and set its timer. Returns False without room
    (H_FAILED)."""
    v = M[g + G_VARIANT]
    flow = take_record(M)
    if flow < 0:
        return False
    i = (g - M[v + V_MESSAGES]) // MESSAGE_WORDS
    number = M[v + V_FIRST] + i
    write_records(M, g, flow, number)
    kind = transport_of(M, M[v + V_KIND])
    if M[v + V_STREAM]:
        _join(M, M[v + V_STREAM], kind, M[v + V_PACKETS])
    node = M[g + G_NODE]
    expect_timers(M, node)
    if M[kind + KIND_LATE]:
        expect_timers(M, M[H_NODES] + (M[g + G_TO] & MASK_DESTINATION) * NODE_WORDS)
    if M[H_FAILED]:
        return False
    r = M[H_RECEIVERS] + flow * RECEIVER_WORDS
    M[r + R_EVENT] = _event_of(M, v, i)
    if M[v + V_FANS]:
        _join_fan(M, v, i, r)
    since = M[M[v + V_LEFT] + LEFT_SINCE] if M[v + V_LEFT] else M[v + V_SINCE]
    if since:
        M[M[H_SENDERS] + flow * SENDER_WORDS + S_SINCE] = since
        M[H_SINCE] = 1
    book = words_at(M[H_BOOK])
    book[(number - M[H_BOOK_FIRST]) * BOOK_WORDS + B_FLOW] = flow
    f = M[H_SENDERS] + flow * SENDER_WORDS
    M[g + G_FLOW] = f
    begin = M[g + G_RELEASED]
    push(M, node, begin, M[f + S_ORDER] | (f << 2) | WHAT_START)
    due = M[H_NEXT] + M[node + N_POSITION]
    M[due] = min(M[due], begin)
    M[H_SOON] = min(M[H_SOON], begin)
    return True


@njit
def open_some(M, g, many):
    """Open those of `many` messages that have been released and have no records yet."""
    for i in range(many):
        mine = g + i * MESSAGE_WORDS
        if M[mine + G_RELEASED] >= 0 and M[mine + G_FLOW] == 0 and not open_message(M, mine):
            return
