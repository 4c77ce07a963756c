"""Layout of an agent's state: arrays of 64-bit words that Python keeps alive and compiled code works on.

An agent has one array of single words (`W_`), whose address is passed to all its compiled functions. It refers to
arrays by address, and to records by *index*, their address in words (`address >> 3`). So the words of all records are
those of one memory `M`, as transports expect (`gradwire.protocols.transports.base`), whoever has allocated them.

Times are nanoseconds since the beginning of the run for words with `_ns` and those of the loop, otherwise picoseconds.
"""

from __future__ import annotations

from gradwire.jit import layout as at

NEVER = 1 << 62
CLASSES = 8
EVENTS = 1023
"""File events taken at once, as in Python's select module."""

# --- single words of an agent -----------------------------------------------------------------------------------
(
    W_ORIGIN,  # 0, the address of M[0], unknown at compile time
    W_BROKEN,  # reason to leave compiled code: BROKEN_*, 0: none
    W_ERRNO,  # detail of that reason
    W_CALL,  # address of the function that calls Python for rare cases (ASK_*)
    W_RUNNING,  # 1 until the loop is stopped
    # the clock
    W_STILL,  # 1: time stands still while code runs; the clock is read only after waiting
    W_SEEN,  # that reading of the machine's clock
    W_BEGINNING,  # its reading at the beginning of the run
    W_CALLED,  # due time of the current call, NEVER: not a timer
    W_STOOD_UNTIL,  # end of the last pause: timers due before it do not count as late
    W_SHARE,  # nanoseconds after which processes of the same priority get a turn, 0: left to the kernel
    W_TURN,  # beginning of this process's turn, by the machine's clock
    # timers: the heap, and the first of Python's timers
    W_SET,  # timers ever set, here or in Python
    W_HEAP, W_HEAP_COUNT, W_HEAP_ROOM,
    W_PYTHON_TIME, W_PYTHON_NUMBER,  # NEVER: none
    W_LATE, W_LATE_COUNT, W_LATE_ROOM,  # lateness of timers
    # waiting
    W_EPOLL, W_TIMER, W_ARMED, W_SPEC, W_EVENTS, W_IDLE,
    W_FILES, W_FILES_ROOM,  # handling of each file: FILE_*
    # the NIC
    W_LINE,  # picoseconds per byte << 16
    W_AHEAD, W_MAKE_UP, W_LAST_CLASS,
    W_BUSY,  # end of the line's busy time
    W_WAKE, W_WAKE_AT,  # the number of its wake-up timer, 0: none
    W_SERVING,
    W_SHARED,  # 1: the kernel's TCP shares this host's NIC, and its packets may go first
    W_CARD_FILE,  # if shared: the socket of the packet that may still be in the NIC, 0: none
    W_CARD_TURN, W_CARD_BYTES, W_CARD_SINCE,  # its flow or group, its bytes, and its time of arrival there
    W_AT_CARD,  # 1: it was there at the last attempt to send
    W_PULLED,  # result of the last pull
    W_PACED, W_PACED_COUNT, W_PACED_ROOM,  # heap of flows and groups that are set aside
    # the endpoint
    W_OUT, W_IN,  # indices of the arenas of datagrams
    W_DATA_FILE,
    W_ANSWERED,  # bytes of control packets that answer the current batch
    W_STRAYS,
    W_SENDERS, W_SENDERS_MASK,  # tables of the messages in flight
    W_RECEIVERS, W_RECEIVERS_MASK,
    W_FIRST_DONE, W_LAST_DONE,  # receivers completed by the batch
    W_READY,  # first and last flow or group that may send, of every class
) = range(59)  # fmt: skip
WORDS = W_READY + 2 * CLASSES

BROKEN_CALL, BROKEN_ASKED, BROKEN_RULES, BROKEN_PULLED = range(1, 5)
"""A system call failed (W_ERRNO: errno); Python raised an exception in a request; a function of a transport did
(W_ERRNO: L_*); or it pulled a nonexistent packet (W_ERRNO: its number)."""
FILE_OF_PYTHON, FILE_TIMER, FILE_DATA, FILE_ANSWERS, FILE_ROOM = range(5)
ASK_TIMER, ASK_FILE, ASK_IDLE, ASK_ROOM, ASK_RECEIVER, ASK_NO_DATA = range(6)
ASK_ANSWER, ASK_DELIVER, ASK_TOLD, ASK_SETTLE, ASK_PROBE = range(6, 11)
"""Requests to Python: fire its first timer; serve a file (number, events); do deferred work; enlarge the heaps; make
the receiver of a message; handle a packet other than data (message, slot, now); send an answer other than an
acknowledgement (message, answer, slot, sequence << 1); deliver a message; handle a special answer (message, slot, now);
settle a message; send a Probe (message, question) and return its bytes."""

RUN, DUE, BEGIN, HEARD, SERVE, TOOK = range(6)
"""Commands of `gradwire.emu.agent.core.entry.enter`: run the loop; fire due timers; start a flow; update a flow; send
what is due; account for control packets of `argument` bytes."""

# a timer: time, number << 1 | 1 if set in advance, index of a flow or 0 for the NIC
TIMER_WORDS = 3
# an entry set aside: time, number of the message, index of the flow or group
PACED_WORDS = 3

# --- flows and groups: the NIC's state of a message ---------------------------------------------------------------
(
    F_IS_GROUP, F_LISTED, F_NEXT, F_SINCE, F_PRIORITY, F_NUMBER,
    F_PACE,  # of a flow: not before this time
    F_GROUP,  # of a flow: the group that shares its turns, 0: none
    F_BEHIND,  # of a flow: the next one of its group
    F_ARMED, F_ARMED_AT,  # of a flow: the number of its timer, 0: none
    F_RULES, F_PARAMETERS,  # indices of the functions and of the parameters of its transport
    F_FILE, F_NAME, F_SOURCE,  # socket, address of the destination's sockaddr_in, IPv4 address of the other end
    F_TOS,  # of droppable and of important packets
    F_TOS_IMPORTANT,
    F_PAYLOAD, F_NBYTES, F_FILL, F_PACKETS,
    F_CONTENT,  # address of the message's bytes
    F_HEARD,  # a bit for every kind of packet passed to its rules
    FLOW_WORDS,
) = range(25)  # fmt: skip
G_PAIR, G_FIRST, G_LAST = F_PACE, F_GROUP, F_BEHIND
"""Of a group: the words of its pair, and the oldest and the youngest of its members that may have data to send."""
GROUP_WORDS = F_ARMED
UNLISTED, LISTED, PACED = range(3)
SENDER_RECORD = FLOW_WORDS
"""beginning of the transport's record of a sender"""
SENDER_BEYOND = SENDER_RECORD + at.SENDER_WORDS

# --- receivers ------------------------------------------------------------------------------------------------------
(
    E_NUMBER,
    E_RULES,
    E_PARAMETERS,
    E_PACKETS,
    E_PAYLOAD,
    E_NBYTES,
    E_FILL,
    E_SOURCE,
    E_PLACE,  # address of its buffer
    E_MARKED,  # data packets with a mark
    E_NEXT_DONE,
    E_CONTROL_BYTES,
    E_CONTROL_FLAGS,
    E_CONTROL_TOS,  # of its answers
    E_BY_SIDE,  # 1: answers other than acknowledgements use the side channel
    END_WORDS,
) = range(16)
RECEIVER_RECORD = END_WORDS
RECEIVER_BEYOND = RECEIVER_RECORD + at.RECEIVER_WORDS

# --- a transport's functions: addresses of machine code
RULES = ("start", "pull", "on_control", "on_timer", "on_data", "on_probe")
L_START, L_PULL, L_ON_CONTROL, L_ON_TIMER, L_ON_DATA, L_ON_PROBE = range(6)
RAISED = -(1 << 62)
"""The result of a function that has raised an exception."""

# --- arenas of datagrams: addresses of the arguments of `sendmmsg` and `recvmmsg`
(O_MESSAGES, O_VECTORS, O_HEADERS, O_CONTROLS, O_FILES, O_COUNT, O_SLOTS, O_ERRNO, O_POLL, O_WAIT_MS, OUT_WORDS) = (
    range(11)
)
I_MESSAGES, I_DATA, I_NAMES, I_CONTROL, I_SLOTS, I_ROOM, I_ERRNO, IN_WORDS = range(8)
