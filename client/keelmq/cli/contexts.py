"""Contexts: named clusters in a file of the user's own, and which of them a command uses.

The file holds addresses and the names of files with tokens, certificates and keys, never a token itself. It decides to
whom a token is shown, so only its owner may change it.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from keelmq.errors import InvalidRequest, NotFound

VARIABLE: Final = "KEELMQ_CONTEXT"
CLIENT_VARIABLES: Final = (
    "KEELMQ_SERVERS",
    "KEELMQ_TOKEN",
    "KEELMQ_TOKEN_FILE",
    "KEELMQ_CA_FILE",
    "KEELMQ_CERTIFICATE_FILE",
    "KEELMQ_KEY_FILE",
)
FILE_BYTES_MAX: Final = 1024 * 1024
CONTEXTS_MAX: Final = 1_000
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Context:
    """Way to a cluster. All files are absolute paths."""

    servers: str
    """URLs of any nodes, comma-separated."""
    ca_file: str | None = None
    token_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True)
class Contexts:
    """Content of the file."""

    current: str | None
    """Name of the context that is used when nothing else is said; None if there is none."""
    by_name: Mapping[str, Context]

    def get(self, name: str) -> Context:
        """Return a context. Raises NotFound."""
        found = self.by_name.get(name)
        if found is None:
            raise NotFound("context_not_found", f"context {name}: not in {path()}; `keelmq context list` shows all")
        return found

    def with_context(self, name: str, context: Context) -> "Contexts":
        """Return the contexts with a new or changed one. Raises InvalidRequest when its name is not one, or there are
        too many.
        """
        if not NAME.fullmatch(name):
            raise _invalid(f"context {name!r}: a name has 1 to 64 letters, digits, and - _ .")
        by_name = {**self.by_name, name: context}
        if len(by_name) > CONTEXTS_MAX:
            raise _invalid(f"context {name}: there are {CONTEXTS_MAX} contexts already; remove some")
        return replace(self, by_name=by_name)

    def without(self, name: str) -> "Contexts":
        """Return the contexts without this one, which is then not the current one either. Raises NotFound."""
        self.get(name)
        by_name = {other: context for other, context in self.by_name.items() if other != name}
        return Contexts(None if self.current == name else self.current, by_name)

    def using(self, name: str) -> "Contexts":
        """Return the contexts with this one as the current one. Raises NotFound."""
        self.get(name)
        return replace(self, current=name)


@dataclass(frozen=True)
class Flags:
    """Options that the command line has before the command; None for those it has not."""

    context: str | None = None
    ca_file: str | None = None
    token_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


FLAGS: Final[ContextVar[Flags]] = ContextVar("FLAGS", default=Flags())  # noqa: B039  # it is frozen


def chosen(servers_flag: bool) -> Context | None:
    """Return the context that a command uses, or None: the context that --context names; otherwise the context of
    KEELMQ_CONTEXT, unless `servers_flag` says where the cluster is; otherwise the current one, unless a variable says
    so. So a token is shown to typed servers only together with a typed context. Raises NotFound and InvalidRequest.
    """
    typed, exported = FLAGS.get().context, os.environ.get(VARIABLE)
    if typed or (exported and not servers_flag):
        return load().get(typed or exported or "")
    if servers_flag or any(os.environ.get(variable) for variable in CLIENT_VARIABLES):
        return None
    contexts = load()
    return None if contexts.current is None else contexts.get(contexts.current)


def name_in_use(contexts: Contexts) -> str:
    """Return the name of the context that --context, KEELMQ_CONTEXT or the file names. Raises NotFound."""
    name = FLAGS.get().context or os.environ.get(VARIABLE) or contexts.current
    if not name:
        raise NotFound("context_not_found", "no context is the current one; `keelmq context use NAME` chooses one")
    return name


def path() -> Path:
    """Return the file: keelmq/contexts.json in XDG_CONFIG_HOME, by default ~/.config."""
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not home.is_absolute():
        try:
            home = Path.home() / ".config"
        except RuntimeError:  # a user without a home, as in a container
            home = Path("/nonexistent")
    return home / "keelmq" / "contexts.json"


def load() -> Contexts:
    """Return what the file says; no contexts if there is none. Raises InvalidRequest when others may read or write the
    file, or when it is broken.
    """
    file = path()
    try:
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            content = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts(None, {})
    except OSError as error:
        raise _invalid(f"{file}: cannot be read: {error.strerror}") from None
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise _invalid(f"{file}: users other than its owner may read or write the file; run chmod 600 {file}")
    if status.st_uid not in (os.geteuid(), 0):
        raise _invalid(f"{file}: the file belongs to another user; make contexts of your own")
    if len(content) > FILE_BYTES_MAX:
        raise _invalid(f"{file}: more than {FILE_BYTES_MAX} bytes")
    try:
        return _decode(json.loads(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise _invalid(f"{file}: is broken ({error}); mend it, or remove it and add the contexts anew") from None


def save(contexts: Contexts) -> None:
    """Replace the file at once, readable by its owner only: after a crash it has its former content or this one. Raises
    InvalidRequest.
    """
    from keelmq.cli.files import replace_file

    file = path()
    document = {
        "current": contexts.current,
        "contexts": {
            name: {key: value for key, value in asdict(context).items() if value is not None}
            for name, context in sorted(contexts.by_name.items())
        },
    }
    content = json.dumps(document, indent=2).encode() + b"\n"
    if len(content) > FILE_BYTES_MAX:
        raise _invalid(f"{file}: would have more than {FILE_BYTES_MAX} bytes; remove contexts")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, content, new_mode=0o600)
    except OSError as error:
        raise _invalid(f"{file}: cannot be written: {error.strerror}") from None


def _decode(document: Any) -> Contexts:
    """Return the contexts of a JSON document. Raises ValueError and TypeError when it has another form."""
    if not isinstance(document, dict) or not isinstance(document.get("contexts"), dict):
        raise ValueError("no member contexts")
    current, listed = document.get("current"), document["contexts"]
    known = {field.name for field in fields(Context)}
    by_name: dict[str, Context] = {}
    for name, members in listed.items():
        if not NAME.fullmatch(name) or not isinstance(members, dict) or not members.keys() <= known:
            raise ValueError(f"context {name!r} has another form")
        if not all(isinstance(value, str) and value for value in members.values()):
            raise ValueError(f"context {name!r} has a member that is no text")
        by_name[name] = Context(**members)
    if current is not None and current not in by_name:
        raise ValueError("the current context is not among the contexts")
    return Contexts(current, by_name)


def _invalid(detail: str) -> InvalidRequest:
    return InvalidRequest("invalid_request", detail)
