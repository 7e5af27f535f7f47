"""Commands about the cluster as a whole, each with its result."""

import msgspec

from store.commands.base import CommandBase
from store.limits import RETENTION_UNLIMITED_BYTES


class PutSettings(CommandBase, frozen=True, tag=17):
    """Change the given settings of the cluster."""

    reject_transactions: bool | None = None
    log_retention_bytes: int | None = None


class Settings(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Settings that operators can switch for the whole cluster."""

    reject_transactions: bool = False
    log_retention_bytes: int = RETENTION_UNLIMITED_BYTES


class SettingsPut(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    settings: Settings
