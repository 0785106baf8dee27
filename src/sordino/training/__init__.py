"""Training on raw data: models, clipped sums of per-example gradients, local and online learning,
and their evaluation.
"""
