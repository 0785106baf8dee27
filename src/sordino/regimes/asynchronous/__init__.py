"""Arrivals: an edge sends a gradient when it is ready, and the server applies it at once."""
