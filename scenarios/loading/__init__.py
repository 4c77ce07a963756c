"""Loading of scenarios: TOML, overrides, user-defined classes and error messages."""
