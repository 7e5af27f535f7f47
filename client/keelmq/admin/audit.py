"""The audit of one node: its records, and which of them to ask for."""

from typing import Final, Literal, get_args

import msgspec

from keelmq.admin.view import View

Outcome = Literal["done", "failed", "denied", "redirected", "begun"]
OUTCOMES: Final[tuple[str, ...]] = get_args(Outcome)


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects records: those that match every field that is given. `since_ms` is included, `until_ms` not;
    `route` is a part of method and path, such as `DELETE /v1/topics` or the name of a topic.
    """

    principal: str | None = None
    outcome: Outcome | None = None
    action: str | None = None
    route: str | None = None
    request_id: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class AuditRecord(View, frozen=True, kw_only=True):
    """A call that changes or administers something, or one that was denied. `id` is unique at its node; `principal` is
    `anonymous` without valid credentials; `outcome` is one of OUTCOMES, or one that only a newer broker knows; `action`
    is the action of the permission that the call needs, `resource` the resource for which it was denied; `permitted` is
    true when a denied call went on (auth permissive). `raft_index` is the last entry that it put into the log;
    `operator` and `reason` are copied from the request. `missing_before` records before this one could not be kept.
    """

    id: str
    at_ms: int
    principal: str
    address: str
    method: str
    path: str
    route: str
    outcome: str
    code: str | None
    action: str | None
    resource: str | None
    permitted: bool
    request_id: str | None
    trace_id: str | None
    raft_index: int | None
    detail: str | None
    missing_before: int
    operator: str | None = None
    reason: str | None = None


class AuditPage(View, frozen=True, kw_only=True):
    """Records of one node, the newest first. While its `auth` is `off`, they name nobody. `next` is the `after` of the
    next page; it may be there although this page has no record. `unreadable` lines or files of the part that was read
    could not be.
    """

    node_id: int
    auth: str
    records: list[AuditRecord]
    next: str | None
    unreadable: int
