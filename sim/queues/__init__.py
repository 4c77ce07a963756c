"""Queue policies: what a full or filling egress queue does with an arriving packet. One file each, one line here."""

KINDS = {
    "threshold": "sim.queues.threshold:Threshold",
    "red": "sim.queues.red:Red",
}
