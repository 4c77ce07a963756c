"""Agreement of a simulated and an emulated run of one scenario."""
