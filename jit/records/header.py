"""Record classes lay out the engine state's header (clock, counters, region addresses), its threads and their delivery
logs.
"""

from __future__ import annotations

from gradwire.jit.records.table import Array, Pointer, Record, Word


class StateRecord(Record, memory="state"):
    """A record of the state."""


class State(StateRecord, words=128):
    """The header of the state."""

    now = Word("everything before this time has been simulated", "ps")
    until = Word("end of the call (exclusive)", "ps")
    window = Word("length of a lookahead window, at most the lookahead", "ps")
    host_latency = Word("after an event that Python must handle, the engine runs on for at most this time", "ps")
    seed = Word("seed of the random draws")
    holds = Word("1: the number of packets in the windows does not end the call; 2: idle worker threads leave, too")
    parity = Word("half of the wake flags that the next window reads")
    budget = Word("windows after which the engine returns")
    status = Word("reason why the engine returned")
    threads = Word("number of thread records")
    barrier = Word("arrivals at the barrier (own cache line)", at=16)
    sense = Word("generation of the barrier (own cache line)", at=24)
    go = Word("epoch counter that hands a call to the worker threads (own cache line)", at=32)
    quit = Word("1: worker threads leave their loop, and no thread waits for another")
    nodes = Word("region: nodes", at=40)
    ports = Word("region: egress ports")
    heads = Word("region: consumer counters of the links, by entry of the ingress lists")
    ingress = Pointer("region: ingress lists of the nodes, bases of ports")
    wake = Word("region: wake flags of the nodes by position, two halves")
    next_events = Pointer("region: time of the next event of each node, by position")
    destinations = Pointer("region: destinations of the routing tables")
    routes = Word("region: routing tables")
    groups = Word("region: groups of equally short next hops")
    senders = Word("region: records of senders")
    receivers = Word("region: records of receivers")
    thread_records = Word("region: records of threads", at=52)
    parameter_sets = Word("region: parameter sets of the transports")
    block_shift = Word("log2 of the destinations in a block of the routing tables")
    positions = Word("number of nodes: length of one half of the wake flags")
    order = Pointer("region: bases of the nodes by position")
    streak = Word("consecutive windows that suit the other mode (all threads, or one) better")
    flowlet_gap = Word("silence after which a flow may change its path", "ps")
    red_pmax = Word("marking probability just below `Port.red_kmax`", "<< 32")
    shared_buffer = Word("buffer that a switch's ports share", "bytes")
    shared_alpha = Word("limit of a queue over the free shared buffer, times ALPHA_UNIT")
    path_entropies = Word("path entropies per message that hosts choose among, 0 = any")
    trim_size = Word("size of a trimmed packet", "bytes")
    trim_class = Word("class of trimmed packets")
    pause_hysteresis = Word("pause: the far end resumes this far below the limit", "bytes")
    pause_classes = Word("classes that can be paused")
    opposite_ports = Pointer("region: port in the opposite direction for every entry of the ingress lists", at=70)
    tie_keys = Pointer("region: key that breaks ties between arrivals for every entry of the ingress lists")
    timers = Word("programs: base of the heap of timers, entries of TIMER_WORDS (time, number, kind)", at=80)
    timer_count = Word("programs: entries of the heap of timers")
    timers_set = Word("programs: timers set so far")
    next_timer = Word("programs: time of the first timer, FOREVER = none", "ps")
    event_heap = Word("scratch: base of a heap of reported events, laid out as the heap of timers")
    earliest_consequence = Word(
        "programs: earliest consequence, here or in the network, of the events played last", "ps"
    )
    earliest_python_event = Word("programs: earliest event played last that Python must handle", "ps")
    event_heap_count = Word("entries of the heap of reported events")
    starved_process = Word("base of the process at whose schedule's end the player has stopped, 0 = none")
    invalid_rule = Word("1 + number of the function with an invalid result (`GUARDED_FUNCTIONS`), 0 = none")
    invalid_owner = Word("transport of the function with an invalid result")
    invalid_value = Word("invalid result of the function")
    invalid_limit = Word("exclusive upper limit of the function's results")
    ties_since_iteration = Word(
        "1: some messages' ties depend on the time since their iteration began (`Sender.ties_since`)"
    )
    counts_ties = Word("1: each thread counts the packets that a draw has ordered")
    class_limits = Array(8, "part of its port's or of the shared buffer that each class may use", "bytes", at=96)
    message_log = Word("address of the message log (`sim.engine.memory.message_log`), rows of BOOK_WORDS")
    log_first = Word("number of the message in the first row of the message log")
    flow_key = Word("key of the messages' path entropies")
    used_records = Word("flow records ever used: those from here on are zeros")
    free_records = Pointer("base of the stack of free record numbers")
    free_count = Word("entries of the stack of free record numbers")
    dropped = Pointer("region: packets lost of the message of each record, by record number")
    closing = Pointer("base of the list of records with a delivered message and a finished sender")
    closing_count = Word("entries of the list `closing`")
    transports = Word("region: transports of the run, KIND_WORDS each")
    free_stretches = Pointer("the first free stretch of every size class; unused memory begins at `arena_next`")
    arena_next = Word("start of the unused memory of the arena")
    arena_end = Word("end of the arena")
    heap_next = Word("start of the free memory for growing timer heaps of hosts")
    heap_end = Word("end of the memory for timer heaps of hosts")
    failure = Word("FAILED_ reason why the run cannot continue, 0 = none")
    exceeds_caches = Word("1: the state exceeds the caches, so fields of the next node are prefetched")


class Thread(StateRecord, words=64):
    """A thread of the engine."""

    free_entries = Word("free list of its pool")
    next_entry = Word("pool words never used so far")
    pool_end = Word("end of its pool")
    first_position = Word("first position it owns", at=4)
    node_count = Word("positions it owns")
    delivery_count = Word("deliveries logged: entries of DONE_WORDS", at=7)
    deliveries = Word("base of the log of deliveries")
    drop_count = Word("drops logged: entries of DROP_WORDS")
    drops = Word("base of the log of drops")
    trace_count = Word("packet log entries of TRACE_WORDS")
    trace = Word("base of the packet log")
    keys = Pointer("scratch: sort keys")
    addresses = Pointer("scratch: ring entries")
    buckets = Pointer("scratch: counts of the bucket sort")
    log_limit = Word("entries of a log at which the engine has to return")
    spare_keys = Pointer("second scratch for keys")
    opposite_ports = Pointer("scratch: the port opposite to the link of a packet")
    egress_ports = Pointer("scratch: the egress ports of a switch's arrivals")
    played = Word("logged deliveries that the program player has handled")
    earliest_arrival = Word("earliest arrival it has put on any link in this window", at=24)
    earliest_delivery = Word("earliest delivery or sender's end in this window that Python must handle")
    wake_base = Word("base of the half of the wake flags that the next window reads")
    wake = Pointer("... that half", at=26)
    work = Word("packets handled in this window")
    ties = Word("arrivals so far that a draw has put behind others of the same time, if that mattered")
    tie_keys = Pointer("scratch: tie-break keys of the packets' links")
    total_work = Word("packets handled in all windows")
    published = Array(
        16, "values published at the barrier, two halves of 8 words: next, delivered, full, work, to be played", at=32
    )
    claims = Array(16, "number of its nodes claimed in this window, two halves of 8 words")


class WindowResult(StateRecord):
    """Results that a thread publishes at the end of a window."""

    earliest = Word("earliest event that is known", "ps")
    delivered = Word("earliest delivery or sender's end that Python must handle", "ps")
    is_full = Word("1 if a log is full")
    work = Word("packets handled")
    to_play = Word("logged events that the program player has not handled")
    next_timer = Word("time of the first timer of the programs", "ps")


class DeliveryEntry(StateRecord):
    """An entry of a thread's log of deliveries and of senders that are done."""

    time = Word("when it happened", "ps")
    flow = Word("number of the flow's records")
    what = Word("DELIVERED or FINISHED")
    received = Word("payload bytes that have arrived", "bytes")


Record.state_class = State
