"""Commands about the cluster as a whole, each with its result."""

import msgspec

from store.commands.base import CommandBase


class PutSettings(CommandBase, frozen=True, tag=17):
    """Change the given settings of the cluster."""

    reject_transactions: bool | None = None


class Settings(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Settings that operators can switch for the whole cluster."""

    reject_transactions: bool = False


class SettingsPut(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    settings: Settings
