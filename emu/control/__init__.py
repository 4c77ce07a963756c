"""Who starts, watches and ends the processes of a testbed, on this machine and on others."""
