"""Records of the audit, and which of them a reader asks for. docs/security.md promises the names of the fields.

A record is one JSON object on a line of its own. No field can hold a credential: bodies, queries and headers are not
recorded, apart from the operator and the reason that a request names.
"""

from typing import Final, Literal

import msgspec

Outcome = Literal["done", "failed", "denied", "redirected", "begun"]
"""Outcome of a call: `redirected` ones were sent on to the node that carries them out and records them again;
`begun` are decisions by force, whose end the transaction's timeline tells.
"""
TEXT_CHARACTERS_MAX: Final = 512
"""Longest text in a record, in characters; what is longer is cut."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call. Fields that a later version adds are ignored."""

    at_ms: int
    """Wall time of this node at the end of the call."""
    principal: str
    """Name of who was proven to ask; `anonymous` without valid credentials."""
    address: str
    method: str
    path: str
    route: str
    """Path of the route, with the names of its parameters."""
    outcome: Outcome
    code: str = ""
    """Code of the error with which the call was answered; empty without one."""
    action: str = ""
    """Action of the permission that the call needs; empty where its handler asks for each resource."""
    resource: str = ""
    """Resource for which the permission is missing, of a denied call."""
    permitted: bool = False
    """True for a denied call that was let through, because authentication is permissive."""
    request_id: str = ""
    trace_id: str = ""
    raft_index: int = 0
    """Index of the last entry that the call put into the log; 0 without one."""
    detail: str = ""
    operator: str = ""
    """Name of the person who wants the call, as the request says: a program or a page may show the token."""
    reason: str = ""
    """Why, as the request says."""
    missing_before: int = 0
    """Number of records before this one that are not in the file: the disk or the bounds did not take them."""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects records: those that match every field that is given."""

    principal: str | None = None
    outcome: Outcome | None = None
    action: str | None = None
    route: str | None = None
    """Part of the method and the path, such as `PUT /v1/topics` or the name of a topic."""
    request_id: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """Records before this time, which itself is not included."""

    def matches(self, record: AuditRecord) -> bool:
        return (
            (self.principal is None or record.principal == self.principal)
            and (self.outcome is None or record.outcome == self.outcome)
            and (self.action is None or record.action == self.action)
            and (self.request_id is None or record.request_id == self.request_id)
            and (self.since_ms is None or record.at_ms >= self.since_ms)
            and (self.until_ms is None or record.at_ms < self.until_ms)
            and (self.route is None or self.route in f"{record.method} {record.path}")
        )


decoder: Final = msgspec.json.Decoder(AuditRecord)
_encoder: Final = msgspec.json.Encoder()


def line_of(record: AuditRecord) -> bytes:
    """Return the record as a line of the file. JSON escapes the line ends of a text, so a line is one record."""
    return _encoder.encode(record) + b"\n"


def cut(text: str) -> str:
    """Return the text as a record may hold it: valid UTF-8, and not longer than TEXT_CHARACTERS_MAX."""
    return text[:TEXT_CHARACTERS_MAX].encode(errors="replace").decode()
