"""The transport as PySyncObj sees it."""

from collections.abc import Callable
from typing import Any

from pysyncobj.transport import Transport as LibraryTransport


class PeerLink(LibraryTransport):  # type: ignore[misc]  # the library is untyped
    """The library's own two messages become ours through `send_message(peer, message)`, and nothing else leaves."""

    def __init__(self, send_message: Callable[[int, dict[str, Any]], None], transport: LibraryTransport) -> None:
        super().__init__(None, None, None)
        self._send_message = send_message
        self._transport = transport
        transport.setOnMessageReceivedCallback(self._onMessageReceived)
        transport.setOnNodeConnectedCallback(self._onNodeConnected)
        transport.setOnNodeDisconnectedCallback(self._onNodeDisconnected)

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        self._send_message(node.id, message)
        return True

    def destroy(self) -> None:
        self._transport.destroy()
