"""Differentially private federated learning with one honest privacy ledger."""

__version__ = "0.1.0"
