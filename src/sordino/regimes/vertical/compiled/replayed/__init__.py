"""A window of a few examples through parties' and server's networks, again at every event.

tiles    products with few rows: there, back, and the change of the weight
numbers  what is no product
layout   where weights and activations lie
event    a block of events in one call
"""
