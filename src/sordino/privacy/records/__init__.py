"""Records, told by what stands in them: who was in which release, under whatever name.

identity   keyed digests, what a run's unit holds, and who is in which set
group      what a release of one unit says about another: group privacy
classes    records with equal histories, and what merging and joining them comes to
store      the tables, and the index from digests to classes
people     the whole: open, close, link
price      what a charge is held against, and what plans ask
"""

from sordino.privacy.records.identity import Records
from sordino.privacy.records.people import close_sets, link, open_sets
from sordino.privacy.records.price import Burden, Prices, bounds, burdens, outside

__all__ = [
    "Burden",
    "Prices",
    "Records",
    "bounds",
    "burdens",
    "close_sets",
    "link",
    "open_sets",
    "outside",
]
