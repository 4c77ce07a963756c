"""The network of a plan in Linux: namespaces, virtual cables, routes and queueing disciplines."""
