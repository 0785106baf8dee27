"""Runtimes: they move messages, keep time and write to disk; no method knows them."""
