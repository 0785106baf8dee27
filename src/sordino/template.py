"""Study files to begin with, one for each regime."""

SYNCHRONOUS = """\
name = "ALI-DPFL on digits"
seed = 0                        # of the simulation; in a simulation the noise comes from it, too

[data]
name = "digits"                 # digits (always there), fashion-mnist, mnist, cifar10, usps, or: file = "mine.csv"
# test = "none"                 # of a file: none | file | public share | private share (measured with noise, at a price)
clients = 10
partition = { kind = "dirichlet", beta = 0.5 }   # iid | dirichlet | shards | column
validation = 0                  # training examples set aside to choose by; treated as public
client_validation = 0.0         # or a share of each client's; treated as public, too

[model]
name = "mlp"                    # logistic, svm, mlp, cnn, cnn-small, cnn-large, cifar-cnn, or "package.module:factory"

[method]
name = "ali-dpfl"               # `sordino methods` lists them
learning_rate = 0.5
average = 0.0                   # decay of an average of the global models; costs no privacy
momentum = 0.0                  # of the server; costs no privacy

[privacy]
unit = "sample"                 # what is protected: sample, client (dp-fedavg and its kin), or none
epsilon = 4.0
delta = 1e-3                    # below one over the smallest client's examples
clip = 1.0
sampling_rate = 0.2             # `sordino plan STUDY --advise` weighs it
# noise_multiplier = 2.0        # left out: calibrated from epsilon and the planned steps
accountant = "pld"              # pld, rdp, rdp-classic, or one order fixed in advance: rdp@8
mechanism = { kind = "gaussian" }   # or haar: noise on wavelet coefficients; k-norm: pure privacy
ledger = "run"                  # or a folder whose ledger knows records, and adds up what all runs over them spent

[budget]
rounds = 20                     # R_s
steps = 40                      # R_c, which noise is calibrated for
"""

ASYNCHRONOUS = """\
name = "MAPA on digits"
seed = 0                        # of the simulation; in a simulation the noise comes from it, too

[data]
name = "digits"                 # digits (always there), fashion-mnist, mnist, cifar10, usps, or: file = "mine.csv"
# test = "none"                 # of a file: none | file | public share | private share (measured with noise, at a price)
clients = 5                     # the edges
partition = { kind = "iid" }    # iid | dirichlet | shards | column

[model]
name = "logistic"               # logistic, svm, mlp, cnn, cnn-small, ..., or "package.module:factory"

[method]
name = "mapa"                   # csgd, asgd (no privacy), audp, mapa
batch = 60                      # b, the expected batch of an edge; noise in a gradient falls with it
theta = 0.5                     # by how much clip and noise fall from stage to stage
smoothness = 0.3                # L, a public guess; learning rates are proportional to 1 / L
regularisation = 1e-4

[privacy]
unit = "sample"                 # or none, for csgd and asgd
epsilon = 4.0                   # of each edge; epsilons = [1.0, 2.0, ...] gives each its own
delta = 1e-3                    # below one over the smallest edge's examples
clip = 1.0                      # G of the first stage
# noise_multiplier = 1.5        # z; left out: calibrated from epsilon and an edge's share of the updates
accountant = "pld"

[budget]
updates = 600                   # T

[participation]
# staleness = 5                 # updates that a gradient may be behind; the number of edges unless given
staleness_weight = 0.0          # a: a gradient tau behind counts (1 + tau)^-a
buffer = 1                      # gradients to an update (FedBuff)

[world]
latency = { kind = "exponential", typical = 1.0, spread = 0.3 }   # cyclic | constant | exponential | lognormal | pareto | trace
dropout = 0.0                   # probability that an edge vanishes with a task; it comes back
"""

VERTICAL = """\
name = "DLR on a stream of digits"
seed = 0                        # of the simulation

[data]
name = "digits"                 # digits (always there), fashion-mnist, mnist, cifar10, usps, susy, higgs, or: file = "mine.csv"
parties = 4                     # they hold different features of the same entities
parts = "slices"                # slices | { kind = "regions", rows = 2, columns = 2 } | { kind = "columns", groups = [["age"], ["dose"]] }
stream = { kind = "deformed", size = 28 }   # replay | deformed: endless deformed images | file: the rows of a file in order
drift = "none"                  # none | { kind = "classes", every = 50 } | gradual | swap | features

[model]
name = "mlp"                    # mlp, physics, linear (convex), or own, with party and server = "package.module:factory"

[method]
name = "dlr"                    # ogd, slr, dlr
learning_rate = 0.01            # of every party, and of the server where server_learning_rate is left out
length = 10                     # l, of the window
alpha = 0.95                    # how much a gradient counts one event later
activation = { kind = "random", p = 0.5 }   # full | random | { kind = "event", threshold = -0.5 } | { kind = "count", k = 2 }

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

TEMPLATES = {"synchronous": SYNCHRONOUS, "asynchronous": ASYNCHRONOUS, "vertical": VERTICAL}
