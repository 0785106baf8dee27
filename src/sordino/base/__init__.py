"""Foundations: errors, files, entropy, messages, names of what can be registered."""
