"""A study between real sites: the kernel of the simulator, bound to a network.

The server plays the regime, and each site does the work of one client with its own data, ledger and
veto. What they say to each other is in :mod:`~sordino.network.frames`. Nothing here computes a
release: a site books a task in its ledger, and then lets the same client work that a simulation
has.
"""
