"""Every table and figure of the five papers, made again: which claims hold, and at which epsilon.

``entry`` is what a file of the catalogue says (``measures`` and ``rules`` are its parts), ``cells``
makes studies of an entry, ``play`` has them run by ``worker``, ``verdicts`` judges claims,
``results`` puts an entry together, ``tables`` and ``pages`` show it.
"""
