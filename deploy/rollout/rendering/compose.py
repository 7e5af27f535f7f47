"""A Compose file: one service per node, each with a volume of its own."""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final

from deploy.rollout.inventory import Inventory, is_loopback
from deploy.rollout.rendering.files import SECRET_MODE, File, Files, RenderError, yaml_file
from deploy.rollout.rendering.image import AGENT, CONFIG, DATA_ROOT, FILES_MAX, PROCESSES_MAX, STOP_S
from deploy.rollout.rendering.parts import Parts

ETC: Final = "/run/secrets"
START_S: Final = 600
LOG_SIZE: Final = "64m"
LOG_FILES: Final = 5
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_COMMENT: Final = """\
KeelMQ cluster {id}: written by `keelmq-deploy render compose`, which replaces this directory. docs/containers.md
Every node begins with an empty volume, and the first start of the cluster needs all of them."""


def compose(inventory: Inventory, nodes: Sequence[Parts], user: str) -> Files:
    """Return the files. `user` is UID:GID, who owns the secrets. Raises RenderError for addresses that do not fit."""
    files: dict[str, File] = {}
    secrets: dict[str, Any] = {}
    services: dict[str, Any] = {}
    for parts in nodes:
        name = f"node-{parts.node.id}"
        files[f"config/{name}.toml"] = parts.config
        for file, content in parts.files.items():
            files[f"secrets/{name}/{file}"] = File(content, SECRET_MODE)
            secrets[f"{name}-{file}"] = {"file": f"./secrets/{name}/{file}"}
        services[name] = _service(inventory, parts, name, user)
    document = {
        "name": re.sub(r"[^a-z0-9_-]", "-", inventory.cluster.id.lower()),
        "services": services,
        "networks": {"keelmq": {}},
        "volumes": {f"data-{parts.node.id}": {} for parts in nodes},
        "configs": {name: {"file": f"./config/{name}.toml"} for name in services},
        "secrets": secrets,
    }
    files["compose.yaml"] = yaml_file(_COMMENT.format(id=inventory.cluster.id), document)
    files[".gitignore"] = File(b"/secrets/\n")
    return files


def _service(inventory: Inventory, parts: Parts, name: str, user: str) -> dict[str, Any]:
    containers = inventory.file.containers
    return {
        "image": containers.image,
        "hostname": parts.address.peer_host,
        "user": user,
        "command": ["--config", CONFIG],
        "networks": {"keelmq": {"aliases": _aliases(parts)}},
        **_published(parts),
        "volumes": [{"type": "volume", "source": f"data-{parts.node.id}", "target": DATA_ROOT}],
        "configs": [{"source": name, "target": CONFIG}],
        "secrets": [{"source": f"{name}-{file}", "target": file} for file in parts.files],
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": PROCESSES_MAX,
        "ulimits": {"nofile": FILES_MAX, "core": 0},
        "cpus": containers.cpus,
        "mem_limit": containers.memory_bytes,
        "restart": "unless-stopped",
        # Without limits this driver, which is the default, keeps every line for ever.
        "logging": {"driver": "json-file", "options": {"max-size": LOG_SIZE, "max-file": str(LOG_FILES)}},
        "stop_signal": "SIGTERM",
        "stop_grace_period": f"{STOP_S}s",
        "healthcheck": {
            "test": ["CMD", AGENT, "ready", "--config", CONFIG],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{START_S}s",
        },
    }


def _aliases(parts: Parts) -> list[str]:
    """Return the names of the node on the network of the services."""
    host, url_host = parts.address.peer_host, parts.address.url_host
    for each in (host, url_host):
        if is_loopback(each) and each == url_host != host:
            continue
        if not _NAME.fullmatch(each) or is_loopback(each) or _is_ip(each):
            raise RenderError(
                f"node {parts.node.id}: {each} is no name on a network of containers. Give each node a name as in "
                f'peer = "node{parts.node.id}:7091", and that name or localhost in url'
            )
    return sorted({each for each in (host, url_host) if not is_loopback(each)})


def _published(parts: Parts) -> dict[str, Any]:
    """Return the ports that are used on this machine, if the URL is one for it. A listener at a loopback address is
    reached inside of its container only.
    """
    if not is_loopback(parts.address.url_host):
        return {}
    ports = [parts.address.url_port, *([parts.address.admin_port] if parts.address.admin_port else [])]
    return {
        "ports": [{"target": port, "published": str(port), "host_ip": "127.0.0.1", "protocol": "tcp"} for port in ports]
    }


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
