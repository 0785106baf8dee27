"""Rounds: every client trains for some local steps, and the server averages. Sample- and
client-level privacy.
"""
