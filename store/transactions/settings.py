"""Settings of the whole cluster that operators change while it runs: replicated, and so the same on every node."""

import msgspec

from store.commands.cluster import PutSettings, Settings, SettingsPut
from store.errors import TRANSACTIONS_REJECTED, Refused
from store.index import keys
from store.index.index import Index

_decode = msgspec.msgpack.Decoder(Settings).decode
_encode = msgspec.msgpack.Encoder().encode


class ClusterSettings:
    def __init__(self, index: Index) -> None:
        self._index = index
        stored = index.get(keys.SETTINGS)
        self.current = _decode(stored) if stored is not None else Settings()

    def put(self, command: PutSettings) -> SettingsPut:
        """Change the given settings."""
        if command.reject_transactions is not None:
            self.current = msgspec.structs.replace(self.current, reject_transactions=command.reject_transactions)
            self._index.put(keys.SETTINGS, _encode(self.current))
        return SettingsPut(self.current)

    def require_transactions(self) -> None:
        """Refuse (`transactions_rejected`) while the cluster takes no new half transactions."""
        if self.current.reject_transactions:
            raise Refused(TRANSACTIONS_REJECTED, "the cluster takes no new transactions: an operator switched them off")
