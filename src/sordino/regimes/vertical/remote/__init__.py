"""Events between real sites: what of a vertical federation each process has.

The server keeps the rules of the stream, the order of messages and its own half of the network.
Each party keeps its features, its half, who is active and its ledger; whoever holds the labels
keeps them, their responses and its ledger. All of them go through the same events: which rows come
when follows from the study's seed and the agreed number of rows.
"""
