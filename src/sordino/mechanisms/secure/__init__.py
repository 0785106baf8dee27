"""Secure aggregation: a server learns the sum of its clients' vectors, and nothing else of them.

After Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth (Practical secure
aggregation for privacy-preserving machine learning, CCS 2017), the variant against an active
server. Vectors are whole numbers modulo 2^bits. Every pair of clients agrees on a mask that one
adds and the other takes away; each client adds a mask of its own as well. Both secrets are shared
between the clients, so that the masks of who drops out can be taken off the sum, and those of
nobody who is in it.

The package is pure: randomness, signatures and time belong to who calls it.
``client`` is what a client does, ``server`` what the server does. docs/secure-sums.md says what it
protects against and why.
"""
