"""Models that are cut between parties and a server, and learn from one event after another.

net        chains of linear layers, which compiled code knows
models     networks by name
halves     the two halves as any torch modules, message by message
window     a window of past gradients over any module
fused      many events of a window of gradients in one call
static     many events of a window of examples in one call
seen       what is known after a stretch of events
"""
