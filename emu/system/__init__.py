"""Services of the operating system: namespaces, sockets, BPF, captures, processor idle states."""
