"""Settings of the whole cluster that operators change while it runs: replicated, and so the same on every node."""

import msgspec

from store.commands.cluster import PutSettings, Settings, SettingsPut
from store.errors import INVALID_REQUEST, TRANSACTIONS_REJECTED, Refused
from store.index import keys
from store.index.index import Index
from store.limits import RETENTION_UNLIMITED_BYTES

_decode = msgspec.msgpack.Decoder(Settings).decode
_encode_value = msgspec.msgpack.Encoder().encode


def _encode(settings: Settings) -> bytes:
    fields = msgspec.structs.astuple(settings)
    # Without a limit as before there were limits: nodes of feature level 1 read and write that alone.
    return _encode_value(fields[:-1] if settings.log_retention_bytes == RETENTION_UNLIMITED_BYTES else fields)


class ClusterSettings:
    def __init__(self, index: Index) -> None:
        self._index = index
        stored = index.get(keys.SETTINGS)
        self.current = _decode(stored) if stored is not None else Settings()

    def put(self, command: PutSettings) -> SettingsPut:
        """Change the given settings."""
        limit = command.log_retention_bytes
        if limit is not None and limit < 1 and limit != RETENTION_UNLIMITED_BYTES:
            raise Refused(INVALID_REQUEST, f"log_retention_bytes must be at least 1, or -1 for no limit, not {limit}")
        given = {name: value for name, value in msgspec.structs.asdict(command).items() if value is not None}
        if given:
            self.current = msgspec.structs.replace(self.current, **given)
            self._index.put(keys.SETTINGS, _encode(self.current))
        return SettingsPut(self.current)

    def require_transactions(self) -> None:
        """Refuse (`transactions_rejected`) while the cluster takes no new half transactions."""
        if self.current.reject_transactions:
            raise Refused(TRANSACTIONS_REJECTED, "the cluster takes no new transactions: an operator switched them off")
