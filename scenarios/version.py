"""Declares gradwire's version, importable without the public API."""

VERSION = "0.1.0"
