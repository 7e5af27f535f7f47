"""Makes a new cluster of the data of an old one: a name, and a configuration as the last record of its log.

The name (`cluster_uid`) is in the handshake of nodes, in data directories and in what readers of the log are told. So
nodes of the old and of the new cluster refuse each other, and readers of the old log do not go on in the new one.
docs/decisions.md has why the log must then begin behind its second record.
"""

from collections.abc import Iterable
from hashlib import blake2b
from itertools import takewhile
from typing import Final

import msgspec

from cluster.limits import JOIN_PREFIX
from cluster.process.addresses import Peer
from cluster.process.offline.command_output import say
from raft.membership import Configuration, Member, decode_configuration, encode_configuration
from store.commands.entry import Proposal, encode_entry
from store.commands.users import DeleteUser
from store.index import keys
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.record import KIND_CONFIG, KIND_ENTRY
from store.state.machine import StateMachine

SECOND_RECORD: Final = 2
"""Index of the record behind which the log of a new cluster begins at the earliest. A node with an empty disk has the
first record, which is the same in all clusters. From the second on it would apply the old name of the cluster; without
that record it is sent the state, which has the new one.
"""
APPLY_BYTES: Final = 1 << 20
_UID_BYTES: Final = 16


def uid_of(*parts: str) -> str:
    """Return a name of a cluster that is the same for the same parts, and for no others."""
    return blake2b(msgspec.json.encode(parts), digest_size=_UID_BYTES).hexdigest()


def members_of(peers: Iterable[Peer]) -> tuple[Member, ...]:
    """Return the nodes as voters, in the order of their ids."""
    members = [Member(each.node_id, each.address.host, each.address.port, each.url, True) for each in peers]
    return tuple(sorted(members, key=lambda member: member.node_id))


def apply_up_to(last: int, state: StateMachine, log: CommitLog) -> None:
    """Apply the entries of the log up to `last` that are not applied yet."""
    while state.applied_index < last:
        state.apply(log.entries(state.applied_index + 1, APPLY_BYTES, last))


def present_configuration(state: StateMachine) -> Configuration:
    """Return the configuration that the state holds; one without members if the cluster never wrote one."""
    stored = state.configuration
    return Configuration() if stored is None else decode_configuration(stored[1])


def append_configuration(
    log: CommitLog, term: int, former: Configuration, members: tuple[Member, ...], cluster_uid: str
) -> None:
    """Append the record that makes `members` the nodes of the new cluster; durable on return."""
    configuration = msgspec.structs.replace(former, members=members, origin=cluster_uid)
    log.append(log.last_index + 1, term, KIND_CONFIG, encode_configuration(configuration))
    log.sync()


def delete_join_tokens(log: CommitLog, term: int, state: StateMachine, command: str) -> None:
    """Delete the users of all join tokens, and tell which: tokens may have been used up after what the state holds.

    An entry at the end of the log does it, which is applied; durable in the log on return, and the same for the same
    state.
    """
    following = state.users.after(JOIN_PREFIX, len(state.users))
    names = list(takewhile(lambda name: name.startswith(JOIN_PREFIX), (each.user for each in following)))
    if not names:
        return
    payload = encode_entry(
        state.clock_ms, [Proposal(DeleteUser(name), principal=command) for name in names], level=state.feature_level
    )
    log.append(log.last_index + 1, term, KIND_ENTRY, payload)
    log.sync()
    apply_up_to(log.last_index, state, log)
    say(f"join tokens are deleted, since they may have been used up: {', '.join(names)}")


def rename_state(index: Index, cluster_uid: str) -> None:
    """Put the new name into the state; durable on return. The state hash does not cover it."""
    index.put(keys.META_CLUSTER, cluster_uid.encode())
    index.commit()
    index.flush()
