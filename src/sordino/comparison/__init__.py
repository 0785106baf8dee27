"""Studies beside each other: the same seeds for each, so that their differences are paired.

``schedule`` says what to run, ``runner`` runs what is not done yet in processes of its own,
``statistics`` says what the differences mean, ``result`` puts it together, ``tables`` says it.
"""
