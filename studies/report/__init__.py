"""HTML report of anything that gradwire has written: runs, comparisons, sweeps, training runs, claims and fidelity."""
