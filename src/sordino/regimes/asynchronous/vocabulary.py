"""The nouns of this regime."""

from sordino.core.vocabulary import ON_TEST_SET, Vocabulary

WORDS = Vocabulary(
    regime="asynchronous",
    round="update",
    rounds="updates",
    closed="done",
    steps="gradients",
    steps_of_one="gradients of one edge",
    client="edge",
    a_client="an edge",
    clients="edges",
    told=(("stage", ""), ("clip", ".4g"), ("staleness", ".1f")),
    trail="staleness",
    counted={"stale": "too stale", "dropped": "dropped", "lost": "lost", "left": "left for good"},
    steps_end=False,  # who has spent its budget leaves, and the others go on
    accuracy=ON_TEST_SET,
)
