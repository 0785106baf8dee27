"""For a transport of one's own: a :class:`Transport`, named by an entry point of the group
``sordino.transports``; and what lays out and plays a federation on one machine.
"""

from sordino.base.errors import SordinoError as SordinoError
from sordino.base.errors import StudyError as StudyError
from sordino.base.files import Malformed as Malformed
from sordino.base.files import object_of as object_of
from sordino.base.files import read_below as read_below
from sordino.core.files import replace_file as replace_file
from sordino.core.network import Agreement as Agreement
from sordino.network.certificates import context as context
from sordino.network.demo import DemoFederation as DemoFederation
from sordino.network.demo import Process as Process
from sordino.network.demo import end as end
from sordino.network.demo import free_port as free_port
from sordino.network.demo import lay_out as lay_out
from sordino.network.demo import listens as listens
from sordino.network.demo import play as play
from sordino.network.kit import Agreed as Agreed
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
