"""Tools for traces: summary, comparison, plots, merging and retiming."""
