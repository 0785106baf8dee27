"""One kernel for all regimes: what they are told and ask for (effect), and what carries it out (kernel)."""
