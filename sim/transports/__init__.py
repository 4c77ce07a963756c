"""Transports: how one message gets from its sender to its receiver. One file each, one line here."""

KINDS = {
    "tcp_newreno": "gradwire.sim.transports.tcp_newreno:TcpNewReno",
    "dctcp": "gradwire.sim.transports.dctcp:Dctcp",
    "dlcp": "gradwire.sim.transports.dlcp:Dlcp",
    "constant_rate": "gradwire.sim.transports.constant_rate:ConstantRate",
    "cubic": "gradwire.sim.transports.cubic:Cubic",
    "timely": "gradwire.sim.transports.timely:Timely",
    "swift": "gradwire.sim.transports.swift:Swift",
    "pias": "gradwire.sim.transports.pias:Pias",
    "ndp": "gradwire.sim.transports.ndp:Ndp",
    "pfabric": "gradwire.sim.transports.pfabric:PFabric",
    "nscc": "gradwire.sim.transports.nscc:Nscc",
    "dcqcn": "gradwire.sim.transports.dcqcn:Dcqcn",
    "hpcc": "gradwire.sim.transports.hpcc:Hpcc",
    "ltp": "gradwire.sim.transports.ltp:Ltp",
}
