"""Names for code outside of this package, kept from version to version.

========== ======================================================================================
methods    methods of one's own, and the contract ``check_method``
mechanisms mechanisms of one's own, and the contract ``check_noise``
regimes    regimes of one's own
tables     partitions, latencies, data sets and other tables of a study
commands   commands of their own: entry points of the group ``sordino.commands``
runs       studies, runs, attacks, what they leave on disk, pictures and pages
network    transports of their own, by entry points of the group ``sordino.transports``, and what
           plays a federation on one machine
========== ======================================================================================

Everything else in ``sordino`` may change with any version.
"""
