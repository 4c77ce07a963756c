"""HTML report of runs: page, sections, charts and timelines in one self-contained file."""
