"""Compiled loops over events."""
