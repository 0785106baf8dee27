"""Events of one example each, one after another, on weights whose last updates are not in them yet.

listed  tiles over rows that a list names
strips  strips of any length, called by address
chain   layers whose last updates are not in their weights yet
window  shares of pending gradients, the square of their average
steps   what a block, an event and a participant do
events  their order
"""
