"""A study file to begin with."""

TEMPLATE = """\
name = "DLR on a stream of digits"
seed = 0                        # of the simulation

[data]
name = "digits"                 # digits (always there), fashion-mnist, mnist, cifar10, usps, susy
                                # higgs, or: file = "mine.csv"
parties = 4                     # they hold different features of the same entities
parts = "slices"                # slices | { kind = "regions", rows = 2, columns = 2 }
                                # | { kind = "columns", groups = [["age"], ["dose"]] }
# stream: replay | deformed: endless deformed images | file: the rows of a file in order
stream = { kind = "deformed", size = 28 }
# drift: none | { kind = "classes", every = 50 } | gradual | swap | features
drift = "none"

[model]
name = "mlp"                    # mlp, physics, linear (convex), or own, with party and
                                # server = "package.module:factory"

[method]
name = "dlr"                    # ogd, slr, dlr
learning_rate = 0.01            # of all; server_learning_rate: of the server
length = 10                     # l, of the window
alpha = 0.95                    # how much a gradient counts one event later
# activation: full | random | { kind = "event", threshold = -0.5 } | { kind = "count", k = 2 }
activation = { kind = "random", p = 0.5 }

[privacy]
unit = "none"                   # or label (randomised response), or entity (labels and features)
# epsilon = 3.0                 # with a unit, both are needed
# delta = 1e-5

[budget]
events = 20000

[world]
precision = 16                  # bits of a number on its way: 16 or 32
dropout = 0.0                   # probability that a passive party does not answer
missing = "last"                # last | zeros | skip: what stands in then
"""
