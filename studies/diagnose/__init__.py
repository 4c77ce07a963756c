"""`gradwire diagnose`: what slows a running job, beside what the simulated network would give."""
