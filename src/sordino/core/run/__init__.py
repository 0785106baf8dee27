"""The life of a run: begun, played, ended, gone on with, read and verified.

=========== ====================================================================================
folder      the table of its files, what is durable before what, and what in them differs; the log
            and the checkpoints, while it plays
environment what the bits of a result depend on besides the study; the secret key of noise
session     begin and resume
reading     a run as its folder tells it, for reports
verify      a folder and its ledgers, held against each other
=========== ====================================================================================
"""
