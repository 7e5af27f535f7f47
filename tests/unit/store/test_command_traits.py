"""Tuples of several modules say what holds for single commands: each command has a row here that names its tuples."""

from collections.abc import Collection
from typing import get_args

from cluster.core.core import _FREES
from cluster.core.entry_work import _WEIGHED
from store.commands.entry import IRREVERSIBLE, Command
from store.state.machine import _SMALL

IRREVERSIBLE_ONES = "irreversible"
"""Refused in an entry whose time is in doubt, because it acts as time passes and cannot be undone."""
SMALL = "small"
"""Applied with others of its kind in one step, since its bytes bound what it costs."""
FREES = "frees"
"""Accepted while the disk is low. PutTopic, Decide and PutSettings are so in some cases (Core._makes_room)."""
WEIGHED = "weighed"
"""Costs apply more than its bytes tell, by what the state holds for it."""

TRAITS: dict[str, tuple[str, ...]] = {
    "PutTopic": (WEIGHED,),
    "DeleteTopic": (FREES, WEIGHED),
    "Produce": (SMALL,),
    "Prepare": (SMALL,),
    "Decide": (SMALL, WEIGHED),
    "RecordChecks": (),
    "Discard": (IRREVERSIBLE_ONES,),
    "SetCheckUrl": (),
    "JoinGroup": (),
    "LeaveGroup": (),
    "CommitOffsets": (SMALL,),
    "ResetOffsets": (WEIGHED,),
    "GiveBack": (),
    "FireTimers": (IRREVERSIBLE_ONES,),
    "CancelScheduled": (),
    "ResumeTransaction": (),
    "PutSettings": (),
    "PutGroup": (),
    "ReplayDeadLetters": (),
    "CloneOffsets": (WEIGHED,),
    "ExpireMessages": (IRREVERSIBLE_ONES, FREES),
    "SweepIndex": (IRREVERSIBLE_ONES,),
    "Pop": (),
    "AckPopped": (SMALL,),
    "ChangeInvisible": (),
    "ExpirePopped": (),
    "DeleteGroup": (FREES,),
    "ReleaseMessages": (IRREVERSIBLE_ONES, FREES),
    "PutUser": (),
    "DeleteUser": (),
    "PurgeTopic": (FREES,),
    "CountBytes": (FREES,),
    "PauseGroup": (),
}


def test_every_command_has_a_row() -> None:
    assert {kind.__name__ for kind in get_args(Command)} == TRAITS.keys()


def test_the_tuples_agree_with_the_rows() -> None:
    kept: dict[str, Collection[type]] = {
        IRREVERSIBLE_ONES: IRREVERSIBLE,
        SMALL: _SMALL,
        FREES: _FREES,
        WEIGHED: _WEIGHED,
    }
    for trait, kinds in kept.items():
        assert {kind.__name__ for kind in kinds} == {name for name, traits in TRAITS.items() if trait in traits}, trait
