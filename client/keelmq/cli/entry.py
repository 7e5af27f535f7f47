"""Entry point of the installed `keelmq` command, which also runs where the extra `keelmq[cli]` is missing."""

import importlib
from typing import Final

from keelmq.version import how_to_install

EXTRA: Final = ("typer", "rich")
"""Packages of the extra `keelmq[cli]`; the SDK itself does not import them."""


def main() -> None:
    """Run the command. Without the extra, print on stderr how to install it and exit with 1."""
    try:
        for package in EXTRA:
            importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        how = how_to_install("'./client[cli]'")
        raise SystemExit(f"keelmq: the command needs the package {error.name}: install it {how}") from None
    from keelmq.cli import app

    app.main()
