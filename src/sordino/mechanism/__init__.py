"""Mechanisms: the only ways in which something about raw data may leave a client."""
