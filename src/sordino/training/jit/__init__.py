"""What the vertical regime's compiled loops still share; it goes with them."""
