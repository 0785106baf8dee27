"""Regimes: who speaks when. State machines over typed events; no I/O, no clock."""
