"""TCP as a current Linux kernel implements it: RACK, tail loss probes, PRR and pacing."""
