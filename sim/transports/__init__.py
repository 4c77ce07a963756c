"""Transports: how one message gets from its sender to its receiver. One file each, one line here."""

KINDS = {
    "tcp_newreno": "sim.transports.tcp_newreno:TcpNewReno",
    "dctcp": "sim.transports.dctcp:Dctcp",
    "dlcp": "sim.transports.dlcp:Dlcp",
    "constant_rate": "sim.transports.constant_rate:ConstantRate",
    "cubic": "sim.transports.cubic:Cubic",
    "timely": "sim.transports.timely:Timely",
    "swift": "sim.transports.swift:Swift",
    "pias": "sim.transports.pias:Pias",
    "ndp": "sim.transports.ndp:Ndp",
    "pfabric": "sim.transports.pfabric:PFabric",
    "nscc": "sim.transports.nscc:Nscc",
    "dcqcn": "sim.transports.dcqcn:Dcqcn",
    "hpcc": "sim.transports.hpcc:Hpcc",
    "ltp": "sim.transports.ltp:Ltp",
}
