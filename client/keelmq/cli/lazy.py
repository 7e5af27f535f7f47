"""Commands that are imported when they are used: the start of one command does not wait for the others."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from keelmq.cli.parameters import plain

C = TypeVar("C", bound=TyperCommand | TyperGroup)

HELP_OPTIONS: Final = ["-h", "--help"]
AS_WRITTEN: Final = "\b\n"
"""Begins a paragraph whose lines are not broken anew."""


class LazyCommand(TyperCommand):
    """A command, or a group of commands, that is only known by its name and the first paragraph of its help."""

    def __init__(self, module: str, summary: str) -> None:
        """Create the command of `keelmq.cli.<module>`; the last part of that name is the command's name."""
        super().__init__(module.rpartition(".")[2], help=summary, short_help=summary)
        self.module = module

    def load(self) -> TyperCommand | TyperGroup:
        """Import the module and return its command.

        A group is the module's `app`; a single command is the function of the same name, with EXAMPLES as its epilog.
        """
        name = str(self.name)
        module = import_module(f"keelmq.cli.{self.module}")
        parent = typer.Typer(rich_markup_mode=None)
        parent.callback()(_nothing)
        if hasattr(module, "app"):
            parent.add_typer(module.app, name=name)
        else:
            parent.command(name, epilog=module.EXAMPLES)(getattr(module, name))
        group = get_command(parent)
        assert isinstance(group, TyperGroup)
        command = group.commands[name]
        assert isinstance(command, TyperCommand | TyperGroup)
        return trimmed(command)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return the context of the loaded command, so that this one is invoked, completed and explained."""
        return self.load().make_context(*args, **kwargs)


def group_of(summaries: Mapping[str, str]) -> type[TyperGroup]:
    """Return a class of groups with a lazy command for each module, which is listed with its summary."""

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            for module, summary in summaries.items():
                self.add_command(LazyCommand(module, summary))

        def invoke(self, ctx: Any) -> Any:
            """Run the command; who gives it an option that belongs before it is told so."""
            try:
                return super().invoke(ctx)
            except TyperException as error:
                given = getattr(error, "option_name", None)
                own = next((each for each in self.params if given in each.opts), None)
                if own is None or type(error).__name__ != "NoSuchOption":
                    raise
                usage = " ".join(filter(None, ["keelmq", given, own.metavar, ctx.invoked_subcommand]))
                raise typer.BadParameter(f"{given} goes before the command: {usage} …", ctx) from None

    return LazyGroup


def trimmed(command: C) -> C:
    """Have a command, and all commands of a group, start with less to import, and return it.

    Its parameters are plain ones. In its help each line of the examples can be copied, and lists of commands have whole
    first paragraphs.
    """
    command.params = [plain(each) for each in command.params]
    help_option = command.get_help_option(typer.Context(command, help_option_names=HELP_OPTIONS))
    if help_option is not None:
        help_option.default = False  # the absence of a value would be converted
    command.short_help = command.short_help or (command.help or "").split("\n\n")[0].replace("\n", " ")
    if command.epilog:
        command.epilog = "\n\n".join(AS_WRITTEN + each for each in command.epilog.split("\n\n"))
    for child in getattr(command, "commands", {}).values():
        trimmed(child)
    return command


def _nothing() -> None: ...
