"""Attacks on what is released, by who owns the data: they bound a guarantee from below only."""
