"""Declares the memory records of an agent (flows, timers, datagrams, NIC) that Python and compiled code share
(`gradwire.jit.records`).

An agent has one record of single words, `Agent`, whose address is passed to all its compiled functions. It refers to
other records by *index*, their address in words (`address >> 3`). So the words of all records are those of one memory
that begins at address zero, as transports expect (`gradwire.protocols.transports.base`), whoever has allocated them. In
Python a record is a view of its own block of words, and a reference is only a number.

Times are nanoseconds since the beginning of the run in words with `_ns`, otherwise picoseconds.
"""

from __future__ import annotations

from gradwire.emu.native.heap import HeapEntry
from gradwire.jit.compiled import njit
from gradwire.jit.records import Array, Pointer, Record, Reference, Word
from gradwire.jit.records.flows import Pair, Receiver, Sender

NEVER = 1 << 62
CLASSES = 8
EVENTS = 1023
"""File events taken at once, as in Python's select module."""

FAILED_CALL, FAILED_REQUEST, FAILED_RULE, FAILED_PULL = range(1, 5)
"""A system call failed (`failure_detail`: errno); Python raised an exception in a request; a function of a transport
did (its index in RULES); or it pulled a nonexistent packet (its number)."""
FILE_OF_PYTHON, FILE_TIMER, FILE_DATA, FILE_ANSWERS, FILE_SPACE = range(5)
"""Handling of a file: by Python; the timer; incoming data; incoming answers; space in the NIC."""
ASK_TIMER, ASK_FILE, ASK_IDLE, ASK_SPACE, ASK_RECEIVER, ASK_NO_DATA = range(6)
ASK_ANSWER, ASK_DELIVER, ASK_SPECIAL_ANSWER, ASK_SETTLE, ASK_PROBE = range(6, 11)
"""Requests to Python: fire its first timer; serve a file (number, events); do deferred work; enlarge the heaps; make
the receiver of a message; handle a packet other than data (message, slot, now); send an answer other than an
acknowledgement (message, answer, sequence, slot); deliver a message; handle a special answer (message, slot, now);
settle a message; send a Probe (message, question) and return its bytes."""

RUN, FIRE_TIMERS, BEGIN, UPDATE, SERVE, OCCUPY = range(6)
"""Commands of `gradwire.emu.agent.core.entry.enter`: run the loop; fire due timers; start a flow; update a flow; send
what is due; account for control packets of `argument` bytes."""

RULES = ("start", "pull", "on_control", "on_timer", "on_data", "on_probe")
"""Functions of a transport; its table has their addresses."""
START, PULL, ON_CONTROL, ON_TIMER, ON_DATA, ON_PROBE = range(6)
RAISED = -(1 << 62)
"""The result of a function that has raised an exception."""

UNLISTED, LISTED, PACED = range(3)
"""A flow or group at the NIC: has nothing to send; is in the list of its class; or waits for its pace."""


# --- flows and groups: the NIC's state of messages ----------------------------------------------------------------


class Turn(Record):
    """A flow or a group, which take turns at the NIC."""

    is_group = Word("1: a group")
    list_state = Word("UNLISTED, LISTED or PACED")
    next = Reference(lambda: Turn, "the next one in the list of its class, 0: last")
    ready_since = Word("it may have had data to send since then", "ps")
    priority = Word("class of its packets")


class NicFlow(Turn):
    """A flow: the sender of one message. The transport's record follows (`sender_of`)."""

    number = Word("number of the message")
    earliest_start = Word("its pace: no packet begins before this time", "ps")
    group = Reference(lambda: NicGroup, "the group that shares its turns, 0: none")
    next_member = Reference(lambda: NicFlow, "the next flow of its group, 0: last")
    timer_number = Word("number of its timer, 0: none")
    timer_ns = Word("time of that timer", "ns")
    rules = Pointer("addresses of its transport's functions, in the order of RULES")
    parameters = Word("index of the parameters of its transport")
    file = Word("number of its socket")
    destination = Word("address of the destination's sockaddr_in")
    peer = Word("IPv4 address of the other end, in network order")
    tos = Word("TOS byte of its droppable packets")
    important_tos = Word("TOS byte of its important packets")
    payload = Word("payload of a full packet", "bytes")
    nbytes = Word("size of the message", "bytes")
    fill = Word("zeros between header and payload", "bytes")
    packets = Word("packets of the message")
    content = Word("address of the message's bytes")
    passed_kinds = Word("a bit for every kind of packet that is passed to its rules")


class NicGroup(Turn):
    """A group: messages of one transport to one host in one class, which take turns together."""

    pair = Reference(lambda: Pair, "the words of its pair of hosts", at=6)
    first = Reference(lambda: NicFlow, "the oldest member that may have data to send, 0: none")
    last = Reference(lambda: NicFlow, "the youngest one")


class ReceivingFlow(Record):
    """The receiver of one message. The transport's record follows (`receiver_of`)."""

    number = Word("number of the message")
    rules = Pointer("as of a NicFlow")
    parameters = Word("index of the parameters of its transport")
    packets = Word("packets of the message")
    payload = Word("payload of a full packet", "bytes")
    nbytes = Word("size of the message", "bytes")
    fill = Word("zeros between header and payload", "bytes")
    peer = Word("IPv4 address of the other end, in network order")
    buffer = Word("address of its receive buffer")
    marked = Word("data packets with a congestion mark")
    next_complete = Reference(lambda: ReceivingFlow, "the next one completed by the batch, 0: last")
    control_bytes = Word("size of its answers", "bytes")
    control_flags = Word("flags of its answers")
    control_tos = Word("TOS byte of its answers")
    uses_side_channel = Word("1: answers other than acknowledgements use the side channel")


SENDER_WORDS = NicFlow.WORDS + Sender.WORDS
"""Words of a NicFlow and its transport's record; what the transport needs further follows."""
RECEIVER_WORDS = ReceivingFlow.WORDS + Receiver.WORDS
"""Words of a ReceivingFlow and its transport's record; likewise."""


@njit
def sender_of(flow: NicFlow) -> Sender:
    return Sender(flow, flow.base + NicFlow.WORDS)


@njit
def receiver_of(flow: ReceivingFlow) -> Receiver:
    return Receiver(flow, flow.base + ReceivingFlow.WORDS)


# --- entries of arrays --------------------------------------------------------------------------------------------


class ReadyList(Record):
    """The flows and groups of one class that may send."""

    first = Reference(lambda: Turn, "the first one, 0: none")
    last = Reference(lambda: Turn, "the last one")


class AgentTimer(HeapEntry):
    """An entry of the heap of timers."""

    time_ns = Word("when the timer is due", "ns", at=0)
    order = Word("number of the timer << 1 | 1 if it was set in advance", at=1)
    flow = Reference(lambda: NicFlow, "its flow, 0: the NIC's wake-up", at=2)


class PacedEntry(HeapEntry):
    """An entry of the heap of flows and groups that wait for their pace."""

    time = Word("when its next packet may begin", "ps", at=0)
    number = Word("number of the message", at=1)
    turn = Reference(lambda: Turn, "the flow or group", at=2)


class TableEntry(Record):
    """An entry of a table of the messages in flight (`gradwire.emu.agent.shared_words.WordTable`)."""

    key = Word("1 + number of the message, 0: never used")
    index = Word("index of its record, 0: finished")


# --- arenas of datagrams: addresses of the arguments of `sendmmsg` and `recvmmsg` -----------------------------------


class MessageHeader(Record):
    """A `struct mmsghdr` of 64-bit Linux."""

    name = Word("address of the sockaddr_in")
    name_bytes = Word("its size", "bytes")
    vectors = Word("address of the vectors")
    vector_count = Word("number of vectors in use")
    control = Word("address of the control data")
    control_bytes = Word("its size", "bytes")
    flags = Word("flags")
    length = Word("bytes received, in the lower half", "bytes")


class Vectors(Record):
    """The two `struct iovec` of an outgoing datagram."""

    header = Word("address of the header")
    header_bytes = Word("its size, with the zeros behind it", "bytes")
    payload = Word("address of the payload")
    payload_bytes = Word("its size", "bytes")


class OutgoingDatagrams(Record):
    """The batch of outgoing datagrams."""

    messages = Word("address of the slots' MessageHeader")
    vectors = Word("address of the slots' Vectors")
    headers = Word("address of the slots' headers")
    controls = Word("address of the control data of every TOS byte")
    files = Word("address of the slots' sockets")
    count = Word("datagrams in the batch")
    slots = Word("capacity")
    error = Word("errno of the last failed flush")
    poll = Word("address of a `struct pollfd`")
    wait_ms = Word("time limit for a full socket", "ms")


class IncomingDatagrams(Record):
    """The datagrams received last."""

    messages = Word("address of the slots' MessageHeader")
    data = Word("address of the slots' bytes")
    names = Word("address of the slots' sockaddr_in")
    controls = Word("address of the slots' control data")
    slots = Word("capacity")
    slot_bytes = Word("bytes of a slot", "bytes")
    error = Word("errno of the last failed call")


# --- the agent ----------------------------------------------------------------------------------------------------


class Agent(Record):
    """The single words of an agent."""

    origin = Word("address of word 0 of all records: zero, which is unknown at compile time")
    failure = Word("reason to leave compiled code: FAILED_*, 0: none")
    failure_detail = Word("detail of that reason")
    python_function = Word("address of the function that calls Python for rare cases (ASK_*)")
    is_running = Word("1 until the loop is stopped")

    stands_still = Word("1: time stands still while code runs; the clock is read only after waiting")
    reading_ns = Word("that reading of the machine's clock", "ns")
    begin_ns = Word("its reading at the beginning of the run", "ns")
    due_ns = Word("due time of the current call, NEVER: not a timer", "ns")
    paused_until_ns = Word("end of the last pause: timers due before it do not count as late", "ns")
    slice_ns = Word("time slice after which processes of the same priority run, 0: left to the kernel", "ns")
    slice_begin_ns = Word("beginning of this process's time slice, by the machine's clock", "ns")

    timers_set = Word("timers ever set, here or in Python")
    timers = Reference(lambda: AgentTimer, "the heap of timers")
    timer_count = Word("entries of the heap")
    timer_capacity = Word("entries that it has space for")
    python_timer_ns = Word("due time of the first timer of Python, NEVER: none", "ns")
    python_timer_number = Word("its number, NEVER: none")
    lateness = Pointer("lateness of timers in nanoseconds")
    lateness_count = Word("recorded timers")
    lateness_capacity = Word("timers that there is space for")

    epoll = Word("number of the epoll file")
    timer_file = Word("number of the timerfd")
    armed_ns = Word("time of the machine's clock to which the timerfd is set, 0: never", "ns")
    scratch = Word("address of four words for system calls")
    events = Word("address of the events of epoll_wait")
    has_idle_work = Word("1: Python has deferred work")
    files = Pointer("handling of each file: FILE_*")
    file_count = Word("length of that array")

    ps_per_byte = Word("speed of the line", "ps/B << 16")
    ahead = Word("how far in advance transmissions may be scheduled", "ps")
    make_up = Word("maximum lateness that a paced flow makes up for", "ps")
    last_class = Word("last priority class")
    busy_until = Word("end of the line's busy time", "ps")
    wake_number = Word("number of the NIC's wake-up timer, 0: none")
    wake_time = Word("time of that timer", "ps")
    is_serving = Word("1 while the NIC is being served")
    shares_nic = Word("1: the kernel's TCP shares this host's NIC, and its packets may go first")
    nic_file = Word("if shared: the socket of the packet that may still be in the NIC, 0: none")
    nic_turn = Reference(lambda: Turn, "... its flow or group")
    nic_bytes = Word("... its bytes on the link", "bytes")
    nic_since = Word("... its time of arrival there", "ps")
    is_nic_full = Word("1: it was there at the last attempt to send")
    pulled = Word("result of the last pull")
    paced = Reference(lambda: PacedEntry, "the heap of flows and groups that wait for their pace")
    paced_count = Word("entries of that heap")
    paced_capacity = Word("entries that it has space for")

    outgoing = Reference(lambda: OutgoingDatagrams, "the batch of outgoing datagrams")
    incoming = Reference(lambda: IncomingDatagrams, "the datagrams received last")
    data_file = Word("number of the socket for data")
    answer_bytes = Word("control packets that answer the current batch", "bytes")
    invalid_count = Word("invalid datagrams")
    senders = Reference(lambda: TableEntry, "the table of NicFlows by message")
    senders_mask = Word("its length - 1")
    receivers = Reference(lambda: TableEntry, "the table of ReceivingFlows by message")
    receivers_mask = Word("its length - 1")
    first_complete = Reference(lambda: ReceivingFlow, "the first receiver completed by the batch, 0: none")
    last_complete = Reference(lambda: ReceivingFlow, "the last one")
    ready = Array(ReadyList.WORDS * CLASSES, "the ReadyList of every class")


READY = Agent.ready.offset


@njit
def ready_list(agent: Agent, number: int) -> ReadyList:
    return ReadyList(agent, agent.base + READY + number * ReadyList.WORDS)
