"""Loops that numba compiles; each module is imported where there is something to compute.

rounded  noise on a grid: rounded Gaussian numbers
sfc64    random words of many small generators
siphash  a keyed word for each pair of words
haar     the Haar transform
"""
