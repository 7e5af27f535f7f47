"""The file of quotas: what each user, and each client address without credentials, may ask of this node in a second,
may hold of it at a time, and its share of the log.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cluster.limits import USER_PATTERN
from cluster.process.addresses import ConfigError

FILE_BYTES_MAX: Final = 256 * 1024
"""Maximum size of the file: a larger one would take the node a noticeable time at each change."""
RATE_MAX: Final = 1_000_000_000_000
BYTES_PER_S_MIN: Final = 1_024
"""Least limit of bytes in a second. With less, one request would be followed by hours of refusals."""
FILTER_MS_MAX: Final = 1_000
"""Largest limit of the processor time of filters in a second: the loop, in which they are evaluated, has no more."""
WEIGHT_MAX: Final = 100
"""Largest weight of a principal's turns in front of the log; the least is 1."""
ADMINISTRATOR: Final = "admin"
NOT_USERS: Final = frozenset({ADMINISTRATOR, "anonymous"})
"""Names that no user can have: the built-in administrator, who has no quota, and clients without credentials."""

UserName = Annotated[str, Meta(pattern=USER_PATTERN)]
Rate = Annotated[int, Meta(ge=0, le=RATE_MAX)]
FilterMs = Annotated[int, Meta(ge=0, le=FILTER_MS_MAX)]
Weight = Annotated[int, Meta(ge=1, le=WEIGHT_MAX)]


class QuotasUnreadable(ConfigError):
    """The file is not there or cannot be read, which may be over although the file does not change."""


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one principal, and its weight. 0 is no limit. In the file, what a user's section does not name is as in
    `[default]`; in `[default]` and `[anonymous]`, a limit that is not named is 0, and the weight 1.
    """

    requests_per_s: Rate | None = None
    in_bytes_per_s: Rate | None = None
    """Bytes of bodies of requests."""
    out_bytes_per_s: Rate | None = None
    """Bytes of bodies of answers."""
    filter_ms_per_s: FilterMs | None = None
    """Processor time of searches with a filter, in ms."""
    connections: Rate | None = None
    """Connections that requests have come on, at a time."""
    long_polls: Rate | None = None
    """Requests that wait, at a time."""
    held_bytes: Rate | None = None
    """Bytes of bodies of requests that are not answered, and of large answers that are not read, at a time."""
    weight: Weight | None = None
    """Share of the log while more waits for it than one entry holds, relative to the weights of the others."""

    @property
    def has_effect(self) -> bool:
        """Return whether the principal is limited, or has another weight than 1."""
        in_a_second = self.requests_per_s or self.in_bytes_per_s or self.out_bytes_per_s or self.filter_ms_per_s
        at_a_time = self.connections or self.long_polls or self.held_bytes
        return bool(in_a_second or at_a_time) or self.weight not in (None, 1)


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    default: Rates = Rates()
    """Limits of every user without a section of its own."""
    anonymous: Rates = Rates()
    """Limits of each client address, for requests that show no valid credentials."""
    users: Mapping[UserName, Rates] = {}


def read_quotas(path: str) -> QuotaSettings:
    """Read the file and return it with the limits of `[default]` filled in. Raises ConfigError, which names the file
    and the section, and QuotasUnreadable.
    """
    try:
        with open(path, "rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise QuotasUnreadable(f"quota_file {path}: cannot be read: {why}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"quota_file {path}: larger than {FILE_BYTES_MAX} bytes; leave users to [default]")
    try:
        sections = tomllib.loads(content.decode())
        settings = msgspec.convert(sections, QuotaSettings)
    except (ValueError, RecursionError) as error:  # msgspec.ValidationError and UnicodeDecodeError are ValueErrors
        why = "is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ConfigError(
            f"quota_file {path}: {why}; docs/configuration.md, Quotas, shows what may stand there"
        ) from None
    if not sections:  # as while an editor writes it anew
        raise ConfigError(f"quota_file {path}: is empty; to limit nobody, write [default]")
    for name in sorted(NOT_USERS & settings.users.keys()):
        raise ConfigError(f"quota_file {path}: [users.{name}]: no user has this name; see [anonymous]")
    _require_usable(path, settings)
    users = {name: _filled(rates, settings.default) for name, rates in settings.users.items()}
    return msgspec.structs.replace(settings, users=users)


def stamp_of(path: str) -> tuple[int, ...]:
    """Return numbers that change when the file is replaced or written."""
    try:
        status = Path(path).stat()
    except OSError as error:
        return (error.errno or 0,)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _require_usable(path: str, settings: QuotaSettings) -> None:
    sections = {"default": settings.default, "anonymous": settings.anonymous}
    sections |= {f"users.{name}": rates for name, rates in settings.users.items()}
    for section, rates in sections.items():
        for name in ("in_bytes_per_s", "out_bytes_per_s"):
            if 0 < (getattr(rates, name) or 0) < BYTES_PER_S_MIN:
                raise ConfigError(
                    f"quota_file {path}: [{section}] {name}: at least {BYTES_PER_S_MIN}, or 0 for no limit"
                )


def _filled(rates: Rates, default: Rates) -> Rates:
    given = {name: value for name, value in msgspec.structs.asdict(rates).items() if value is not None}
    return msgspec.structs.replace(default, **given)
