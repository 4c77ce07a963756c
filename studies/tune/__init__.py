"""Search for the partition and credit sizes of a scheduler."""
