"""Models that are cut between parties and a server, and learn from one event after another.

net        chains of linear layers, which the loop knows
models     networks by name
split      the two halves as any torch modules, message by message
joint      both halves as one graph
window     a window of past gradients over any module
observed   what is known after a stretch of events
"""
