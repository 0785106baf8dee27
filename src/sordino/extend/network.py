"""For a transport of one's own: a :class:`Transport`, named by an entry point of the group
``sordino.transports``; and what serves and joins a federation, for whoever starts the processes.
"""

from sordino.base.errors import BudgetExceeded as BudgetExceeded
from sordino.base.errors import SordinoError as SordinoError
from sordino.base.errors import StudyError as StudyError
from sordino.base.files import Malformed as Malformed
from sordino.base.files import object_of as object_of
from sordino.base.files import read_below as read_below
from sordino.base.logs import log_to as log_to
from sordino.base.registry import Section as Section
from sordino.core.files import replace_file as replace_file
from sordino.core.files import resumable as resumable
from sordino.core.network import Agreement as Agreement
from sordino.core.run.session import Outcome as Outcome
from sordino.live.federation import Page as Page
from sordino.network.certificates import context as context
from sordino.network.demo import DemoFederation as DemoFederation
from sordino.network.demo import Process as Process
from sordino.network.demo import end as end
from sordino.network.demo import listens as listens
from sordino.network.frames import cut_short as cut_short
from sordino.network.kit import RUN as RUN
from sordino.network.kit import Agreed as Agreed
from sordino.network.kit import read_table as read_table
from sordino.network.server import serve as serve
from sordino.network.site import JoinOptions as JoinOptions
from sordino.network.site import join as join
from sordino.network.site import site_of as site_of
from sordino.network.status import Shown as Shown
from sordino.network.transport import Connects as Connects
from sordino.network.transport import Event as Event
from sordino.network.transport import FrameQueue as FrameQueue
from sordino.network.transport import Hub as Hub
from sordino.network.transport import Line as Line
from sordino.network.transport import Lost as Lost
from sordino.network.transport import Mailbox as Mailbox
from sordino.network.transport import OpensHub as OpensHub
from sordino.network.transport import Stranger as Stranger
from sordino.network.transport import Transport as Transport
