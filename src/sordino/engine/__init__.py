"""What runs a study: so far its records."""
