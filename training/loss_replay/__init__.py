"""Recording of lost packets, and their replay in another training run."""
