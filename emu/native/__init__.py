"""Machine code of the testbed, for agents and the userspace switch, and its access to the system."""
