"""The common parts of regimes in which every client has examples of its own."""
