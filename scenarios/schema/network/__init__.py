"""Schema of the network: links, switches, hosts, topology, transports and traffic."""
