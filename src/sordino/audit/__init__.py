"""Attacks on what is released, run by who owns the data: they bound a guarantee from below, never
from above.
"""
