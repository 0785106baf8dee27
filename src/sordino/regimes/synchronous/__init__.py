"""Rounds of local steps that the server averages, with sample- or client-level privacy."""
