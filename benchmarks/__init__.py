"""Speed of gradwire itself, run by hand; figures and the machine they came from are in README.md."""
