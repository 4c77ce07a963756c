"""The network of a plan out of Linux: namespaces, virtual cables, routes and queueing disciplines."""
