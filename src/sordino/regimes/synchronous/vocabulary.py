"""The nouns of this regime."""

from sordino.core.vocabulary import ON_TEST_SET, Vocabulary

WORDS = Vocabulary(
    regime="synchronous",
    round="round",
    rounds="rounds",
    closed="closed",
    steps="local steps",
    steps_of_one="local steps of one client",
    client="client",
    a_client="a client",
    clients="clients",
    told=(("tau", ""), ("steps", "")),
    trail="tau",
    counted={"late": "late", "lost": "lost"},
    lacking="missing",
    steps_end=True,
    accuracy=ON_TEST_SET,
)
