"""Sordino from Python: studies, plans, runs, comparisons and ledgers as on the command line.

Nothing is done in a second way: a study that is made here is checked as a file is, data that is
given here is kept in a file that the study names, and a run leaves the same folder.

    study         a study, from a file or from keyword arguments
    given         data in memory: frames, arrays, data sets of other libraries
    running       runs, and their folders
    planning      methods to choose from, and prices
    comparing     several studies with the same seeds
    ledgers       what was released, and charges and noise of training loops elsewhere
    shown         records as data frames, and as a notebook shows them
    synchronous, asynchronous, vertical
                  the tables of a study of each regime, as typed classes

``import sordino`` has these names, and imports what they need when they are first used.
"""
