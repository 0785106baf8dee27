"""Training on raw data: models, clipped sums of gradients, local and online learning."""
