"""Measurements against what users would pick instead. Never part of the tests."""
