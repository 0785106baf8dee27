"""Studies beside each other: the same seeds for each, so that their differences are paired.

``schedule`` says what to run, ``runner`` runs what is not done yet in processes of its own,
``result`` says what was found and what the differences mean, ``tables`` says it for people.
"""
