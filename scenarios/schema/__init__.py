"""The models behind a scenario file, one module per table; `scenario` puts them together."""
