"""Start, supervision and end of the processes of a testbed, on this machine and on others."""
