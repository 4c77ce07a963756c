"""Runs the experiments of htsim's Ultra Ethernet simulator and puts both simulators' figures side by side."""
