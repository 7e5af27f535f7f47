"""Scheduled backups where something else runs the nodes: a CronJob of Kubernetes, or a timer of systemd.

[backup] of the inventory says where they go; without a target there are none.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from deploy.rollout.inventory import STORE, BackupTable, Inventory, Node, OptionValue, is_loopback
from deploy.rollout.rendering import restricted
from deploy.rollout.rendering.files import RenderError
from deploy.rollout.rendering.parts import Parts

KEELMQ: Final = "/opt/keelmq/bin/keelmq"
TOKEN: Final = "backup_token"  # noqa: S105
AUTHORITY: Final = "ca.crt"
BACKUP_END: Final = "-[0-9]+-[0-9]+T[0-9]+Z[.]backup"
"""Expression for the name of a backup behind its cluster: others in the directory are nobody's to remove."""
JOB_NAME_CHARACTERS_MAX: Final = 52
JOB_S_MAX: Final = 6 * 3600
"""Seconds after which a job has failed that cannot start, or makes no end: it holds up those after it."""
SCHEDULES: Final = {"hourly": "7 * * * *", "daily": "7 3 * * *"}
"""Times of Kubernetes: minutes at which less begins than at full hours."""
_SECRETS: Final = "/run/keelmq"
_POD: Final = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": restricted.POD,
}
_FEW: Final = {"cpu": "500m", "memory": "256Mi"}


class Source(NamedTuple):
    """The nodes that a backup is read from, and the files that it takes."""

    servers: str
    files: dict[str, bytes]
    """Content by name: TOKEN, AUTHORITY."""


def check_backups(inventory: Inventory, target: str) -> None:
    """Raise RenderError with the next step for what scheduled backups lack on this platform. Needs the inventory alone,
    so that nothing is made before.
    """
    backup = inventory.file.backup
    options = {node.id: inventory.options(node.id, "", "") for node in inventory.nodes}
    for node in inventory.nodes:
        _refuse_unreachable(node, options[node.id])
    if not backup.token_file and any(each.get("auth") == "enforce" for each in options.values()):
        raise RenderError(
            '[backup]: with auth = "enforce" a backup needs token_file, the token of a user with admin on the cluster; '
            "next: keelmq auth user create, keelmq auth acl allow and keelmq auth token create (docs/backup.md)"
        )
    _token(inventory)
    if target == "ansible" and backup.target.startswith(STORE):
        raise RenderError(
            "[backup]: a bundle has no boto3, which s3://… takes; give a directory, such as a mounted share, or run "
            "keelmq backup create where the package keelmq[s3] is installed (docs/backup.md)"
        )
    if target == "kubernetes" and backup.target.startswith(STORE) and not backup.image:
        raise RenderError(
            "[backup]: the image of the nodes has no boto3, which s3://… takes; give image in [backup], one with the "
            "package keelmq[s3]"
        )


def source_of(inventory: Inventory, nodes: Sequence[Parts]) -> Source:
    """Return what backups are read from. Raises RenderError for a file that cannot be read."""
    token = _token(inventory)
    files = {} if token is None else {TOKEN: token}
    if (authority := nodes[0].options.get("http_ca")) is not None:
        files[AUTHORITY] = nodes[0].files[Path(str(authority)).name]
    urls = dict.fromkeys(url for parts in nodes for url in parts.node.administered_at)
    return Source(",".join(urls), files)


def _token(inventory: Inventory) -> bytes | None:
    name = inventory.file.backup.token_file
    path = inventory.path.parent / name
    try:
        return path.read_bytes() if name else None
    except OSError as error:
        raise RenderError(f"[backup]: token_file {path} of this machine: {error.strerror}") from None


def _refuse_unreachable(node: Node, options: Mapping[str, OptionValue]) -> None:
    if is_loopback(urlsplit(node.admin_url).hostname or ""):
        raise RenderError(
            f"[backup]: node {node.id} is administered at a loopback address alone, so that no backup is read from "
            "elsewhere; give admin_listen another address, or leave [backup] out"
        )
    if "http_tls_client_ca" in options:
        raise RenderError(
            f"[backup]: node {node.id} wants certificates of its clients (http_tls_client_ca), and a scheduled backup "
            "has none; leave [backup] out, and run keelmq --certificate-file FILE --key-file FILE backup create"
        )


def _place(backup: BackupTable) -> str:
    """Return the target such that it is a directory also before it exists."""
    return f"{backup.target.rstrip('/')}/"


def _expression(cluster_id: str) -> str:
    """Return the expression for the id, of whose characters the dot alone stands for others in one."""
    return cluster_id.replace(".", "[.]")


def environment(inventory: Inventory, source: Source, etc: str) -> bytes:
    """Return the file that keelmq-backup@.service reads."""
    backup = inventory.file.backup
    values = {"KEELMQ_SERVERS": source.servers}
    names = {TOKEN: "KEELMQ_TOKEN_FILE", AUTHORITY: "KEELMQ_CA_FILE"}
    values |= {names[name]: f"{etc}/{name}" for name in source.files}
    values |= {"BACKUP_CLUSTER": _expression(inventory.file.cluster.id)}
    values |= {"BACKUP_TARGET": _place(backup), "BACKUP_KEEP_DAYS": str(backup.keep_days)}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()).encode()


def timer_schedule(backup: BackupTable) -> bytes:
    """Return what replaces the time of keelmq-backup@.timer."""
    return f"[Timer]\nOnCalendar=\nOnCalendar={backup.every}\n".encode()


def cron_job(
    inventory: Inventory, source: Source, name: str, meta: Callable[[str], dict[str, Any]], labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the CronJob and, for a directory, the claim of its volume. `meta` returns the metadata for a name;
    `labels` let the pods through to the nodes. Raises RenderError for a name that is too long.
    """
    backup, job = inventory.file.backup, f"{name}-backup"
    is_directory = not backup.target.startswith(STORE)
    if len(job) > JOB_NAME_CHARACTERS_MAX:
        raise RenderError(f"[backup]: the CronJob {job} has a name of more than {JOB_NAME_CHARACTERS_MAX} characters")
    document = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": meta(job),
        "spec": {
            "schedule": SCHEDULES[backup.every],
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 1800,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {
                "spec": {
                    "activeDeadlineSeconds": JOB_S_MAX,
                    "backoffLimit": 2,
                    "template": {
                        "metadata": {"labels": {"app.kubernetes.io/name": "keelmq-backup", **labels}},
                        "spec": {**_POD, **_containers(inventory, source, job)},
                    },
                }
            },
        },
    }
    return [document, _claim(inventory, meta(f"{job}s"))] if is_directory else [document]


def _claim(inventory: Inventory, metadata: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(inventory.file.backup.storage_bytes)}},
    }
    if inventory.file.containers.storage_class:
        spec["storageClassName"] = inventory.file.containers.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _containers(inventory: Inventory, source: Source, job: str) -> dict[str, Any]:
    backup = inventory.file.backup
    flags = {TOKEN: "--token-file", AUTHORITY: "--ca-file"}
    given = [part for name in source.files for part in (flags[name], f"{_SECRETS}/{name}")]
    program = "keelmq" if backup.image else KEELMQ
    create = [program, *given, "backup", "create", _place(backup), "--servers", source.servers]
    create += ["--endpoint-url", backup.endpoint_url] if backup.endpoint_url else []
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    if source.files:
        mounts.append({"name": "secrets", "mountPath": _SECRETS, "readOnly": True})
        volumes.append({"name": "secrets", "secret": {"secretName": f"{job}-secrets", "defaultMode": 0o440}})
    if backup.target.startswith(STORE):
        return {"containers": [_container(inventory, "create", create, mounts)], "volumes": volumes}
    kept = {"name": "backups", "mountPath": backup.target.rstrip("/")}
    volumes.append({"name": "backups", "persistentVolumeClaim": {"claimName": f"{job}s"}})
    of_cluster = f".*/{_expression(inventory.file.cluster.id)}{BACKUP_END}"
    old = ["-maxdepth", "1", "-type", "f", "-regextype", "posix-extended", "-regex", of_cluster]
    old += ["-mtime", f"+{backup.keep_days}", "-delete"]
    return {
        # Old ones are removed once the new one is whole: a first container that fails keeps the second from its start.
        "initContainers": [_container(inventory, "create", create, [*mounts, kept])],
        "containers": [_container(inventory, "remove-old", ["find", _place(backup), *old], [kept])],
        "volumes": volumes,
    }


def _container(inventory: Inventory, name: str, command: list[str], mounts: list[dict[str, Any]]) -> dict[str, Any]:
    backup = inventory.file.backup
    container: dict[str, Any] = {
        "name": name,
        "image": backup.image or inventory.file.containers.image,
        "command": command,
        "resources": {"requests": _FEW, "limits": _FEW},
        "securityContext": restricted.CONTAINER,
        "volumeMounts": mounts,
    }
    if backup.store_secret:
        container["envFrom"] = [{"secretRef": {"name": backup.store_secret}}]
    return container
