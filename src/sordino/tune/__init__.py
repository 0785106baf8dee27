"""Choosing a study's constants, and paying for it.

``grid`` says what is tried, ``public`` tries it on public data, ``private`` on the private data at
a price, and ``rules`` chooses without trials. A trial is an ordinary run.
"""
