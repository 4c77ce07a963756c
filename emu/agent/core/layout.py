"""Where every word of an agent lives: arrays of 64-bit words that Python keeps alive and compiled code works on.

An agent has one array of single words (`W_`), whose address all its compiled functions are called with. Everything else
is found from there: arrays by their address, and records by their *index*, which is their address in words (`address >>
3`); so the words of all records are those of one memory `M`, as transports want it
(`gradwire.components.transports.base`), whoever has allocated them.

Times are nanoseconds since the beginning of the run where a word says `_ns` or is the loop's, else picoseconds.
"""

from __future__ import annotations

from gradwire.components import layout as at

NEVER = 1 << 62
CLASSES = 8
EVENTS = 1023
"""How many events of files are taken at once, as many as Python's own would."""

# --- single words of an agent -----------------------------------------------------------------------------------
(
    W_ORIGIN,  # 0, the address of M[0], which compiled code may not know when it is compiled
    W_BROKEN,  # why everything has to be left: BROKEN_*, 0: nothing is wrong
    W_ERRNO,  # more of that
    W_CALL,  # address of the function that asks Python for what is rare (ASK_*)
    W_RUNNING,  # 1 until somebody has stopped the loop
    # the clock
    W_STILL,  # 1: time stands while anything computes, and is read after waiting only
    W_SEEN,  # what the clock of the machine said then
    W_BEGINNING,  # what it says when the run begins
    W_CALLED,  # when that which is being called was due, NEVER: it is no timer
    W_STOOD_UNTIL,  # what was due before it was late for a reason
    W_SHARE,  # nanoseconds after which others of the same priority have a turn, 0: whenever the kernel says so
    W_TURN,  # when this one's began, by the clock of the machine
    # timers: a heap of them, and the first of those that Python keeps
    W_SET,  # timers ever set, here or there
    W_HEAP, W_HEAP_COUNT, W_HEAP_ROOM,
    W_PYTHON_TIME, W_PYTHON_NUMBER,  # NEVER: there is none
    W_LATE, W_LATE_COUNT, W_LATE_ROOM,  # by how much timers were late
    # waiting
    W_EPOLL, W_TIMER, W_ARMED, W_SPEC, W_EVENTS, W_IDLE,
    W_FILES, W_FILES_ROOM,  # what to do with a file: FILE_*
    # the NIC
    W_LINE,  # picoseconds per byte << 16
    W_AHEAD, W_MAKE_UP, W_LAST_CLASS,
    W_BUSY,  # the line is taken until then
    W_WAKE, W_WAKE_AT,  # the timer that lets it go on, by number, 0: none
    W_SERVING,
    W_SHARED,  # 1: the kernel's TCP sends from this host as well, and what it has at the card may go first
    W_CARD_FILE,  # where the card is shared: the socket of the packet that may still be at the card, 0: none
    W_CARD_TURN, W_CARD_BYTES, W_CARD_SINCE,  # whose it is, its bytes, and when it came there
    W_AT_CARD,  # 1: it was there when somebody wanted to send
    W_PULLED,  # what the flow that was asked last wants to send
    W_PACED, W_PACED_COUNT, W_PACED_ROOM,  # heap of turns that are put aside
    # the endpoint
    W_OUT, W_IN,  # indices of the arenas of datagrams
    W_DATA_FILE,
    W_ANSWERED,  # bytes of control packets that answer the batch that is being read
    W_STRAYS,
    W_SENDERS, W_SENDERS_MASK,  # tables of the messages under way
    W_RECEIVERS, W_RECEIVERS_MASK,
    W_FIRST_DONE, W_LAST_DONE,  # receivers that the batch has made complete
    W_READY,  # first flow or group that may send, and last, of every class
) = range(59)  # fmt: skip
WORDS = W_READY + 2 * CLASSES

BROKEN_CALL, BROKEN_ASKED, BROKEN_RULES, BROKEN_PULLED = range(1, 5)
"""A system call failed (W_ERRNO: why), Python raised an exception when it was asked, a function of a transport did
(W_ERRNO: L_*), or wants to send a packet that there is not (W_ERRNO: which)."""
FILE_OF_PYTHON, FILE_TIMER, FILE_DATA, FILE_ANSWERS, FILE_ROOM = range(5)
(
    ASK_TIMER, ASK_FILE, ASK_IDLE, ASK_ROOM, ASK_RECEIVER, ASK_NO_DATA, ASK_ANSWER, ASK_DELIVER, ASK_TOLD,
    ASK_SETTLE, ASK_PROBE,
) = range(11)  # fmt: skip
"""What Python is asked to do: call the first of its timers; serve a file (number, events); work that can wait; make
room in the heaps; make the receiver of a message; look at what is no data (message, slot, now); send what is no
acknowledgement (message, answer, slot, sequence << 1); deliver a message; look at what is no plain answer (message,
slot, now); settle a message; send a probe (message, question): its bytes."""

# a timer: when, number << 1 | whether it lay ahead, what: index of a flow, 0: the NIC's
TIMER_WORDS = 3
# what is put aside: until when, number of the message, index of the flow or group
PACED_WORDS = 3

# --- flows and groups: what the NIC knows of a message ------------------------------------------------------------
(
    F_IS_GROUP, F_LISTED, F_NEXT, F_SINCE, F_PRIORITY, F_NUMBER,
    F_PACE,  # of a flow: not before this time
    F_GROUP,  # of a flow: with which it takes its turns, 0: alone
    F_BEHIND,  # of a flow: the next one of its group
    F_ARMED, F_ARMED_AT,  # of a flow: the timer that watches over it, by number, 0: none
    F_RULES, F_PARAMETERS,  # indices of the functions and of the parameters of its transport
    F_FILE, F_NAME, F_SOURCE,  # from where and whereto it sends: file, address of a socket address, IPv4 address
    F_TOS,  # of droppable and of important packets
    F_TOS_IMPORTANT,
    F_PAYLOAD, F_NBYTES, F_FILL, F_PACKETS,
    F_CONTENT,  # address of the message's bytes
    F_HEARD,  # a bit for every kind of packet that is told to its rules
    FLOW_WORDS,
) = range(25)  # fmt: skip
G_PAIR, G_FIRST, G_LAST = F_PACE, F_GROUP, F_BEHIND
"""Of a group: the words of its pair, and the oldest and the youngest of its members that may have something to send."""
GROUP_WORDS = F_ARMED
UNLISTED, LISTED, PACED = range(3)
SENDER_RECORD = FLOW_WORDS
"""where the transport's record of a sender begins"""
SENDER_BEYOND = SENDER_RECORD + at.SENDER_WORDS

# --- receivers ------------------------------------------------------------------------------------------------------
(
    E_NUMBER, E_RULES, E_PARAMETERS, E_PACKETS, E_PAYLOAD, E_NBYTES, E_FILL, E_SOURCE,
    E_PLACE,  # address of where its bytes go
    E_MARKED,  # data packets that came with a mark
    E_NEXT_DONE,
    E_CONTROL_BYTES, E_CONTROL_FLAGS, E_CONTROL_TOS,  # of its answers
    E_BY_SIDE,  # answers that are no acknowledgements go another way
    END_WORDS,
) = range(16)  # fmt: skip
RECEIVER_RECORD = END_WORDS
RECEIVER_BEYOND = RECEIVER_RECORD + at.RECEIVER_WORDS

# --- a transport's functions: addresses of machine code
RULES = ("start", "pull", "on_control", "on_timer", "on_data", "on_probe")
L_START, L_PULL, L_ON_CONTROL, L_ON_TIMER, L_ON_DATA, L_ON_PROBE = range(6)
RAISED = -(1 << 62)
"""What a function is taken to return that has raised an exception."""

# --- arenas of datagrams: addresses of what `sendmmsg` and `recvmmsg` take
(
    O_MESSAGES, O_VECTORS, O_HEADERS, O_CONTROLS, O_FILES, O_COUNT, O_SLOTS, O_ERRNO, O_POLL, O_WAIT_MS,
    OUT_WORDS,
) = range(11)  # fmt: skip
I_MESSAGES, I_DATA, I_NAMES, I_CONTROL, I_SLOTS, I_ROOM, I_ERRNO, IN_WORDS = range(8)
