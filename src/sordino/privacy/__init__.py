"""Privacy facts, their arithmetic, and the ledger that keeps them."""
