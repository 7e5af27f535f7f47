"""Options and arguments of `keelmq` take values as Typer's own do, with less to import."""

from typing import Annotated, Any, Final, Literal

import pytest
import typer
from typer.core import TyperCommand
from typer.main import get_command

from keelmq.cli.lazy import trimmed
from keelmq.cli.parameters import PlainArgument, PlainOption, plain

TEXTS: Final = ("x", "", "-1", " x ")
NUMBERS: Final = (
    "7",
    "-1",
    "1",
    "10",
    "11",
    "0",
    "x",
    "",
    "1.0",
    "1_0",
    " 7",
    "+7",
    "007",
    "1" * 30,
    7,
    11,
    True,
    "７",
)
CHOICES: Final = ("a", "b", "A", "c", "")
FLAGS: Final = ("1", "0", "true", "false", "TRUE", "yes", "off", "2", "", True, False)
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "needed": TEXTS,
    "text": TEXTS,
    "number": NUMBERS,
    "limited": NUMBERS,
    "clamped": NUMBERS,
    "parsed": NUMBERS,
    "choice": CHOICES,
    "loose": CHOICES,
    "flag": FLAGS,
    "texts": ((), ("x", ""), ["x"], "x"),
    "numbers": ((), ("7", "11"), ("7", "x")),
    "at_least_one": ((), ("x",)),
}


def show(
    needed: Annotated[str, typer.Argument()],
    text: str = "",
    number: int | None = None,
    limited: Annotated[int, typer.Option(min=1, max=10)] = 5,
    clamped: Annotated[int, typer.Option(min=1, max=10, clamp=True)] = 5,
    parsed: Annotated[int, typer.Option(parser=lambda text: len(str(text)))] = 5,
    choice: Literal["a", "b"] | None = None,
    loose: Annotated[Literal["a", "b"], typer.Option(case_sensitive=False)] = "a",
    flag: bool = False,
    texts: Annotated[list[str] | None, typer.Option()] = None,
    numbers: Annotated[list[int] | None, typer.Option(max=10)] = None,
    at_least_one: Annotated[list[str], typer.Option()] = ...,
) -> None: ...


def typer_command() -> TyperCommand:
    app = typer.Typer(add_completion=False)
    app.command()(show)
    command = get_command(app)
    assert isinstance(command, TyperCommand)
    return command


def outcome(parameter: Any, command: TyperCommand, value: Any) -> tuple[Any, ...]:
    """Return the value that the command would get with its type, or the error that the user would see."""
    try:
        got = parameter.process_value(typer.Context(command), value)
    except Exception as error:
        return type(error).__name__, str(error)
    return type(got), list(got) if isinstance(got, tuple) else got


@pytest.mark.parametrize("name", VALUES)
def test_a_value_becomes_what_typer_makes_of_it(name: str) -> None:
    command = typer_command()
    (parameter,) = [each for each in command.params if each.name == name]
    ours = plain(parameter)
    assert isinstance(ours, PlainOption | PlainArgument)
    for value in (*VALUES[name], None):
        expected = outcome(parameter, command, value)
        got = outcome(ours, command, value)
        if expected[0] is tuple and got[0] is list:  # both come to the function as a list
            expected = (list, *expected[1:])
        assert got == expected, value


def test_callbacks_are_called_with_the_value() -> None:
    seen: list[object] = []

    def note(value: str) -> str:
        seen.append(value)
        return value.upper()

    app = typer.Typer(add_completion=False)

    @app.command()
    def command(text: Annotated[str, typer.Option(callback=note)] = "standard") -> None:
        seen.append(text)

    trimmed_command = get_command(app)
    assert isinstance(trimmed_command, TyperCommand)
    trimmed(trimmed_command)(["--text", "given"], standalone_mode=False)
    trimmed_command([], standalone_mode=False)
    assert seen == ["given", "GIVEN", "standard", "STANDARD"]


def test_lines_of_examples_are_not_broken_in_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    example = "keelmq " + "word " * 20 + "end"
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(epilog=f"Examples:\n\n    {example}")(show)
    command = get_command(app)
    assert isinstance(command, TyperCommand)
    trimmed(command)(["--help"], standalone_mode=False)
    assert example in capsys.readouterr().out
