"""Records, told by what stands in them: who was in which release, under whatever name.

identity   keyed digests, what a run's unit holds, and who is in which set
group      what a release of one unit says about another: group privacy
classes    records with equal histories, and what merging and joining them comes to
store      the tables, and the index from digests to classes
people     the whole: open and close
price      what a charge is held against, and what plans ask
"""

from sordino.privacy.records.identity import Records as Records
from sordino.privacy.records.people import close_sets as close_sets
from sordino.privacy.records.people import open_runs as open_runs
from sordino.privacy.records.people import open_sets as open_sets
from sordino.privacy.records.people import recognised as recognised
from sordino.privacy.records.price import Prices as Prices
from sordino.privacy.records.price import bounds as bounds
from sordino.privacy.records.price import outside as outside
from sordino.privacy.records.price import spendings as spendings
