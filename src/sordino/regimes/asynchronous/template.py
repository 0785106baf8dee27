"""A study file to begin with."""

TEMPLATE = """\
name = "MAPA on digits"
seed = 0                        # of the simulation; in a simulation the noise also comes from it

[data]
name = "digits"                 # digits, breast-cancer, diabetes (always there), mnist,
                                # fashion-mnist, cifar10, usps
                                # or: file = "mine.csv"
# test = "none"                 # of a file: none | file | public share | private share (measured
                                # with noise, at a price)
clients = 5                     # the edges
features = "scattering"         # fixed features of an image; leave it out for other data
partition = { kind = "iid" }    # iid | dirichlet | shards | column

[model]
name = "logistic"               # logistic, svm, mlp, cnn, ..., or "package.module:factory"

[method]
name = "mapa"                   # csgd, asgd (no privacy), audp, mapa
batch = 60                      # b, the expected batch of an edge; a larger one, less noise
theta = 0.5                     # by how much clip and noise fall from stage to stage
smoothness = 0.01               # L, a public guess; learning rates are proportional to 1 / L
regularisation = 1e-4

[privacy]
unit = "sample"                 # or none, for csgd and asgd
epsilon = 4.0                   # of each edge; epsilons = [1.0, 2.0, ...] gives each its own
delta = 1e-3                    # below one over the smallest edge's examples
clip = 0.225                    # G of the first stage; chosen on the digits, which are public
# noise_multiplier = 1.5        # left out: calibrated from epsilon and an edge's updates
accountant = "pld"

[budget]
updates = 600                   # T

[participation]
# staleness = 5                 # updates that a gradient may be behind; left out: as many as edges
staleness_weight = 0.0          # a: a gradient tau behind counts (1 + tau)^-a
buffer = 1                      # gradients to an update (FedBuff)

[world]
# latency: cyclic | constant | exponential | lognormal | pareto | trace
latency = { kind = "exponential", typical = 1.0, spread = 0.3 }
dropout = 0.0                   # probability that an edge vanishes with a task; it comes back
"""
