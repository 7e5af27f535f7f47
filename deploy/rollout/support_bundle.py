"""A tarball with what the nodes say of themselves, to be passed on: without secrets, as far as words tell them."""

import io
import json
import os
import re
import tarfile
import time
from pathlib import Path
from typing import Final

from deploy.rollout.health import Probe
from deploy.rollout.inventory import Inventory
from deploy.rollout.transport import Host, HostError, answers_of

REDACTED: Final = "[redacted]"
_BEARER: Final = re.compile(r"(?i)(bearer\s+)[^\s\"',;]+")
_NAMED: Final = re.compile(
    r"(?i)((?:token|secret|password|passwd|authorization)[\"']?\s*[=:]\s*[\"']?)(?!bearer\b)[^\s\"',;]+"
)
_IN_URL: Final = re.compile(r"(://)[^/\s@\"']+@")
_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


def redacted(text: str, known: tuple[str, ...] = ()) -> str:
    """Return the text without the `known` secrets, and without what its own words call a secret."""
    for secret in known:
        text = text.replace(secret, REDACTED)
    text = _KEY.sub(REDACTED, text)
    text = _BEARER.sub(rf"\g<1>{REDACTED}", text)
    text = _NAMED.sub(rf"\g<1>{REDACTED}", text)
    return _IN_URL.sub(rf"\g<1>{REDACTED}@", text)


def support_bundle(inventory: Inventory, probe: Probe, lines: int, path: Path, at_once: int) -> None:
    """Write the tarball, readable by its owner, whole or not at all. A host that does not answer is named in it. At
    most `at_once` hosts are asked at a time.
    """
    known = _secrets(inventory)
    views = probe.views()
    logs = answers_of(lambda node: Host(inventory, node).logs(lines), inventory.nodes, at_once)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with (
        open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream,
        tarfile.open(fileobj=stream, mode="w:gz") as archive,
    ):
        for view, answer in zip(views, logs, strict=True):
            node = view.node
            log = f"{answer}\n" if isinstance(answer, HostError) else "\n".join(answer) + "\n"
            state = json.dumps({"reason": view.reason, "status": view.status}, indent=1) + "\n"
            for name, text in (("keelmqd.log", log), ("status.json", state), ("keelmqd.toml", node.config)):
                content = redacted(text, known).encode()
                member = tarfile.TarInfo(f"{inventory.cluster.id}/node{node.id}/{name}")
                member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
                archive.addfile(member, io.BytesIO(content))
    new.rename(path)


def _secrets(inventory: Inventory) -> tuple[str, ...]:
    """Return the secrets that this machine knows."""
    paths = [inventory.beside(".secret")]
    if inventory.cluster.token_file:
        paths.append(Path(inventory.cluster.token_file))
    words = [word for path in paths if path.exists() for word in path.read_text().split()]
    return tuple(sorted(words, key=len, reverse=True))
