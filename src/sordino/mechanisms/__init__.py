"""Mechanisms: the only ways in which something about raw data may leave a client.

Torch and compiled loops are imported where noise is added: whoever only prices it does not wait.
"""
