"""Transports: how one message gets from its sender to its receiver. One file each, one line here."""

KINDS = {
    "tcp_newreno": "gradwire.components.transports.tcp_newreno:TcpNewReno",
    "dctcp": "gradwire.components.transports.dctcp:Dctcp",
    "dlcp": "gradwire.components.transports.dlcp:Dlcp",
    "constant_rate": "gradwire.components.transports.constant_rate:ConstantRate",
    "cubic": "gradwire.components.transports.cubic:Cubic",
    "timely": "gradwire.components.transports.timely:Timely",
    "swift": "gradwire.components.transports.swift:Swift",
    "pias": "gradwire.components.transports.pias:Pias",
    "ndp": "gradwire.components.transports.ndp:Ndp",
    "pfabric": "gradwire.components.transports.pfabric:PFabric",
    "nscc": "gradwire.components.transports.nscc:Nscc",
    "dcqcn": "gradwire.components.transports.dcqcn:Dcqcn",
    "hpcc": "gradwire.components.transports.hpcc:Hpcc",
    "ltp": "gradwire.components.transports.ltp:Ltp",
}
