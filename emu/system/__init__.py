"""What the operating system is asked for: namespaces, sockets, BPF, captures, processors that stay awake."""
