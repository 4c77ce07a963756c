"""Transports: how one message gets from its sender to its receiver. One file each, one line here."""

KINDS = {
    "tcp_newreno": "sim.transports.tcp_newreno:TcpNewReno",
    "dctcp": "sim.transports.dctcp:Dctcp",
    "dlcp": "sim.transports.dlcp:Dlcp",
}
