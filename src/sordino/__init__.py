"""Differentially private federated learning with one privacy ledger."""

__version__ = "0.1.0"
