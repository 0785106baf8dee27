"""Every table and figure of the five papers, made again: which claims hold, and at which epsilon.

``entry`` is what a file of the catalogue says, ``catalogue`` finds the files, ``cells`` makes
studies of an entry, ``play`` runs them, ``measures`` reads numbers from runs, ``rules`` and
``verdicts`` judge claims, ``results`` puts an entry together, ``page`` and ``markdown`` show it.
"""
