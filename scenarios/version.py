"""Version of gradwire, importable without the public API."""

VERSION = "0.1.0"
