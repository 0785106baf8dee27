"""What regimes share in which every client has examples of its own."""
