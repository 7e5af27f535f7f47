"""Mistakes of a call that are seen before anything is asked or made."""

import argparse
from pathlib import Path
from typing import Final

from deploy.rollout.inventory import STORE, Inventory

ACCEPTS_DOWNTIME: Final = ("restart", "upgrade", "rollback", "drain")
"""Verbs that stop a node which the operator can start again, so that clients wait and nothing is lost."""


class UsageError(Exception):
    """The verb lacks an argument or a file, or the inventory lacks what the verb needs."""


def check_usage(inventory: Inventory, options: argparse.Namespace) -> None:
    """Raise UsageError for what no host and no repetition can mend."""
    if options.node is not None and all(node.id != options.node for node in inventory.nodes):
        raise UsageError(f"{options.inventory} has no node {options.node}")
    if options.verb == "install" and options.bundle is None:
        raise UsageError("install needs --bundle FILE (make bundle)")
    if options.bundle is not None:
        _require_file("--bundle", options.bundle)
    if options.accept_downtime and options.verb not in ACCEPTS_DOWNTIME:
        raise UsageError(f"{options.verb} takes no --accept-downtime, which is for {', '.join(ACCEPTS_DOWNTIME)}")
    if options.verb == "certs" and not inventory.cluster.tls:
        raise UsageError('certs needs tls = "peers" or "all" in [cluster] of the inventory')
    if options.verb == "restore":
        _check_restore(options)
    if options.verb == "render":
        _check_render(inventory, options.subject)


def _check_restore(options: argparse.Namespace) -> None:
    if options.backup is None:
        raise UsageError("restore needs --backup FILE|S3_URL (keelmq-deploy backup)")
    if not options.backup.startswith(STORE):
        _require_file("--backup", Path(options.backup))


def _check_render(inventory: Inventory, target: str) -> None:
    if inventory.file.backup.target and target != "compose":
        from deploy.rollout.rendering.backups import check_backups  # late: other verbs need nothing of it
        from deploy.rollout.rendering.files import RenderError

        try:
            check_backups(inventory, target)
        except RenderError as error:
            raise UsageError(str(error)) from None
    if target != "ansible":
        if not inventory.file.containers.image:
            raise UsageError("image is missing in [containers] of the inventory: docs/containers.md")
        return
    places = [node.ssh for node in inventory.nodes]
    if len(set(places)) != len(places):
        raise UsageError("two nodes are on one host: the services of a host are named after their cluster")


def _require_file(option: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror or error}") from None
