"""Queue policies: verdicts on packets that arrive at a filling egress queue, one file each.

A queue policy is a class with one compiled function,

    admit(port, waiting, header) -> verdict

which is called for a packet that finds the port busy and that its buffer has admitted: the port's own, or the switch's
shared one (`_full` in `gradwire.sim.engine.core.port`).

* `port`: the record of the egress port (`gradwire.jit.records.network.Port`). Random numbers are `draw(port.red_key,
  port.red_draws)`; then `port.red_draws += 1`;
* `waiting`: the packets of the packet's class that wait there (`QueueClass`: `nbytes`, `threshold`);
* `header`: the packet's first header word (constants `A_` in `gradwire.jit.records.constants`);
* the verdict: 0 the packet waits, 1 it waits and is marked, 2 it is dropped as if the buffer were full, 3 it is dropped
  selectively.

`forgets = True` declares that verdicts do not depend on earlier messages, so that equal iterations may be skipped.
"""
