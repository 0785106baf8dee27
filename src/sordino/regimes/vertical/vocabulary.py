"""The nouns of this regime."""

from sordino.core.vocabulary import Accuracy, Vocabulary

ON_THE_STREAM = Accuracy(
    name="accuracy over the stream",
    told="accuracy over the stream",
    share="Share of the events predicted correctly, each before it was learned from",
    final="Accuracy over the whole stream, each event predicted before it was learned from",
    curve=("error", "run-time error (%)"),
    curve_is="Share of wrong predictions in the events of the last five rows of the log",
    streamed=True,
)

WORDS = Vocabulary(
    regime="vertical",
    round="event",
    rounds="events",
    closed="played",
    steps="activations",
    steps_of_one="activations of one party",
    client="party",
    a_client="a party",
    clients="parties",
    told=(("error", ".3f"), ("accumulated", ".3f"), ("regret", ".1e")),
    trail="error",
    steps_end=False,
    accuracy=ON_THE_STREAM,
)
