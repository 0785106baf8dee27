"""What packages beside this one may use: names that are kept from version to version.

========== ======================================================================================
commands   commands of their own: entry points of the group ``sordino.commands``
runs       studies, runs, attacks, and what they leave on disk
pages      pictures and pages
network    transports of their own, by entry points of the group ``sordino.transports``, and what
           serves and joins a federation
========== ======================================================================================

Everything else in ``sordino`` may change with any version.
"""
