"""The SDK names what the broker logs."""

import re
import typing

from keelmq.log.log_records import COMMAND_NAMES, KIND_NAMES
from store.commands.entry import Command
from store.log import dump


def test_every_command_has_the_name_that_it_has_in_the_broker() -> None:
    kinds = typing.get_args(Command)
    names = {kind.__struct_config__.tag: re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower() for kind in kinds}
    assert names == COMMAND_NAMES


def test_so_has_every_kind_of_record() -> None:
    assert dump.KIND_NAMES == KIND_NAMES
