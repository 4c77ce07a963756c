"""The simulated network: topology, packet fabric, transports, collectives, tensor scheduling and training jobs."""
