"""Diagnosis of a running job from the log of its collectives: late ranks, slow links, interruptions and hangs."""
