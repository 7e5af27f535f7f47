"""Command `keelmq bundle`: what the nodes say of themselves over HTTP, in one file to be passed on."""

import io
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from keelmq.cli.operations.doctor import document_of, look
from keelmq.cli.operations.each_node import OfNode, ask_each
from keelmq.cli.operations.findings import findings_of
from keelmq.cli.output import DEFAULT_SERVERS, EXIT_ERROR, AsJson, Servers, print_json, run, say

if TYPE_CHECKING:
    from keelmq.admin import NodeCalls

EXAMPLES: Final = "Example:  keelmq bundle support.tar.gz"
AUDIT_MAX: Final = 500
"""Maximum number of records of the audit of a node, the newest ones."""
LOOK_S: Final = 2.0
WAITING_S: Final = 300.0
MODE: Final = 0o600


def bundle(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, a tar.gz; it must not be there.")],
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Write state, metrics, configuration and audit of all nodes, and what doctor finds, into one file.

    Nobody but its owner may read it. It has no tokens, secrets or message bodies, but names of topics, groups, users
    and hosts. What the token may not see is named in it instead. The logs of nodes are not served: keelmq-deploy bundle
    has them.

    Exit code 1 if something could not be had; the file has the rest.
    """
    from keelmq.cli.files import sync_directory, write_synced

    if file.exists():
        raise typer.BadParameter(f"{file} is there", param_hint="FILE")
    documents, missing = run(servers, lambda _: _collect(servers), as_json=as_json)
    write_synced(file, _tar(documents), MODE)
    sync_directory(file.parent)
    if as_json:
        print_json({"file": str(file), "documents": sorted(documents), "missing": missing})
    else:
        for each in missing:
            say(f"missing: {each}")
        say(f"{file}: {len(documents)} documents")
    if missing:
        raise typer.Exit(EXIT_ERROR)


async def _collect(servers: str) -> tuple[dict[str, str], list[str]]:
    """Return the documents by name, and what could not be had."""
    documents: dict[str, str] = {}
    missing: list[str] = []
    for name, work in _PARTS.items():
        for each in await ask_each(servers, work):
            if each.answer is None:
                missing.append(f"{name} of {_named(each)}: {each.error}")
            else:
                documents[f"node{each.node_id}/{name}"] = each.answer
    seen = await look(servers, LOOK_S, WAITING_S)
    documents["doctor.json"] = _json(document_of(seen, findings_of(seen)))
    documents["missing.json"] = _json(missing)
    return documents, missing


def _named(each: OfNode[str]) -> str:
    return each.url if each.node_id is None else f"node {each.node_id}"


async def _status(calls: "NodeCalls") -> str:
    return _json((await calls.status()).document)


async def _config(calls: "NodeCalls") -> str:
    return _json((await calls.config()).document)


async def _audit(calls: "NodeCalls") -> str:
    return _json((await calls.audit(limit=AUDIT_MAX)).document)


async def _metrics(calls: "NodeCalls") -> str:
    return await calls.metrics()


_PARTS: Final[dict[str, Callable[["NodeCalls"], Awaitable[str]]]] = {
    "status.json": _status,
    "config.json": _config,
    "audit.json": _audit,
    "metrics.txt": _metrics,
}


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _tar(documents: dict[str, str]) -> bytes:
    import tarfile

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in documents.items():
            content = text.encode()
            member = tarfile.TarInfo(f"keelmq-bundle/{name}")
            member.size, member.mtime, member.mode = len(content), int(time.time()), MODE
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()
