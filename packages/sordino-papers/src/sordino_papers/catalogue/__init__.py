"""The catalogue: one file for each table and figure, and the base studies in ``studies``."""
