"""Comparison of Results: tables, plots and a Markdown report."""
