"""A study file to begin with."""

TEMPLATE = """\
name = "ALI-DPFL on digits"
seed = 0                        # of the simulation; in a simulation the noise also comes from it

[data]
name = "digits"                 # digits, breast-cancer, diabetes (always there), mnist,
                                # fashion-mnist, cifar10, usps
                                # or: file = "mine.csv"
# test = "none"                 # of a file: none | file | public share | private share (measured
                                # with noise, at a price)
clients = 10
features = "scattering"         # fixed features of an image; leave it out for other data
partition = { kind = "dirichlet", beta = 0.5 }   # iid | dirichlet | shards | column
validation = 0                  # training examples set aside to choose by; treated as public
client_validation = 0.0         # or a share of each client's; treated as public, too

[model]
name = "logistic"               # logistic, svm, mlp, cnn, cnn-small, cnn-large, cifar-cnn
                                # or "package.module:factory"

[method]
name = "ali-dpfl"               # `sordino methods` lists them
learning_rate = 32.8            # this and clip: `sordino tune STUDY --rules`, without a trial
average = 0.0                   # decay of an average of the global models; costs no privacy
momentum = 0.0                  # of the server; costs no privacy

[privacy]
unit = "sample"                 # who is protected: sample, client (dp-fedavg and its like), or none
epsilon = 4.0                   # of each client; epsilons = [1.0, 2.0, ...] gives each its own
delta = 1e-3                    # below one over the smallest client's examples
clip = 0.225
sampling_rate = 0.2             # `sordino plan STUDY --advise` weighs it
# noise_multiplier = 2.0        # left out: calibrated from epsilon and the planned steps
accountant = "pld"              # pld, rdp, rdp-classic, or one order fixed in advance: rdp@8
mechanism = { kind = "gaussian" }   # or haar: noise on wavelet coefficients; k-norm: pure privacy
ledger = "run"                  # or a folder: its ledger adds up what all runs spend on a record

[budget]
rounds = 20                     # R_s
steps = 40                      # R_c, which noise is calibrated for
"""
