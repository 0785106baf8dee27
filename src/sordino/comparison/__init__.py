"""Studies beside each other: the same seeds for each, so that their differences are paired.

``schedule`` says what to run, ``folders`` what is there already, ``runner`` runs the rest in
processes of their own, ``statistics`` says what the differences mean, ``result`` puts it together.
"""
