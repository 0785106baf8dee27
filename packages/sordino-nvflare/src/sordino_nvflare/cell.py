"""Messages between the processes of one NVFlare job, over NVFlare's cells."""

from __future__ import annotations

from typing import Any

import msgspec
from nvflare.apis.fl_constant import CellMessageAuthHeaderKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import AUTH_CLIENT_NAME_FOR_SJ

from sordino_nvflare.channel import SERVER, Got, Parcel, Topic

CHANNEL = "sordino"


class CellPost:
    """Post of a job process: messages through its cell.

    Args:
        cell: of this job process.
        job: identifier of the job.
        cells: qualified name of each other process's parent cell: of the server, or of the sites,
            which differs from the site's name behind a relay.
    """

    def __init__(self, cell: Any, job: str, cells: dict[str, str]) -> None:
        self._cell = cell.core_cell  # without the library's streams, which are slower
        self._names = {FQCN.join([own, job]): name for name, own in cells.items()}
        self._cells = {name: own for own, name in self._names.items()}

    def on(self, topic: Topic, got: Got) -> None:

        def taken(message: Any) -> Any:
            name = self._sender(message)
            if name is None:
                return make_reply(ReturnCode.AUTHENTICATION_ERROR)
            parcel = _parcel(message)
            if parcel is None:
                return make_reply(ReturnCode.INVALID_REQUEST)
            reply = got(name, parcel)
            return None if reply is None else Message({}, msgspec.msgpack.encode(reply))

        self._cell.register_request_cb(CHANNEL, topic, taken)

    def tell(self, to: str, topic: Topic, parcel: Parcel) -> None:
        message = Message({}, msgspec.msgpack.encode(parcel))
        self._cell.fire_and_forget(CHANNEL, topic, self._cells[to], message, optional=True)

    def ask(self, to: str, topic: Topic, parcel: Parcel, seconds: float) -> Parcel | None:
        message = Message({}, msgspec.msgpack.encode(parcel))
        reply = self._cell.send_request(
            CHANNEL, topic, self._cells[to], message, timeout=seconds, optional=True
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
        return _parcel(reply) if code == ReturnCode.OK else None

    def _sender(self, message: Any) -> str | None:
        """The name of the process that a message is from, if it is one of this job: what the
        sender's cell is called, and for a site also the name in the token that NVFlare's server
        has checked.
        """
        name = self._names.get(str(message.get_header(MessageHeaderKey.ORIGIN)))
        known = message.get_header(CellMessageAuthHeaderKey.CLIENT_NAME)
        return name if known == (AUTH_CLIENT_NAME_FOR_SJ if name == SERVER else name) else None


def _parcel(message: Any) -> Parcel | None:
    """Return the parcel in a message; None for anything else than bytes of a parcel."""
    if not isinstance(message.payload, bytes | bytearray | memoryview):
        return None
    try:
        return msgspec.msgpack.decode(message.payload, type=Parcel)
    except msgspec.MsgspecError:
        return None
