"""Tables of a study of parties with different features, learning from events, as typed classes.

>>> Budget(events=20_000).events
20000
"""

from sordino.regimes.vertical import study
from sordino.regimes.vertical.method import Count as Count
from sordino.regimes.vertical.method import Dlr as Dlr
from sordino.regimes.vertical.method import Full as Full
from sordino.regimes.vertical.method import Ogd as Ogd
from sordino.regimes.vertical.method import Random as Random
from sordino.regimes.vertical.method import Slr as Slr
from sordino.regimes.vertical.method import Threshold as Threshold

Budget = study.Events
Data = study.VerticalData
Execution = study.EventExecution
Model = study.SplitModel
Privacy = study.VerticalPrivacy
Release = study.Release
World = study.Missing
