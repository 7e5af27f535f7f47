"""The operator who is named in the log for what a command does."""

from typing import Annotated

import typer

Operator = Annotated[
    str, typer.Option(envvar="USER", help="Name of the operator; kept in the log. Default: who is logged in.")
]


def operator_of(given: str) -> str:
    """Return the given name, else that of the user of this process; empty for one that has none."""
    if given:
        return given
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user need not be in the user database
        return ""
