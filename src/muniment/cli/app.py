"""Define the program as groups of commands; a command is loaded only when it runs or its help is printed.

`TABLE` lists the commands, and for each one the module with its function. The name of the function consists
of the words of the command, joined by underscores: `review_list` is `muniment review list`. The module
`command` defines the shared options and the exit codes.
"""

from __future__ import annotations

from enum import EnumType
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from muniment.cli.table import ALIASES, GROUPS, PROGRAM, TABLE
from muniment.names import __version__


def _skip_conversion(parameter: Any) -> None:
    """Let a parameter keep a value that already has its type, such as a default or the text of a user.

    For any other value typer imports pydantic, which takes 45 ms.
    """
    convert = parameter.process_value
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)

    def process_value(ctx: Any, value: Any) -> Any:
        if ctx.resilient_parsing:  # A shell completes a word: the other words may be incomplete too.
            return value
        if value is None and not parameter.required:
            kept: Any = () if parameter.multiple or parameter.nargs == -1 else None
        elif kind == list[str] and value and all(isinstance(each, str) for each in value):
            kept = [*value]
        elif type(value) is kind and (kind is str or (kind in {float, int} and value is parameter.default)):
            kept = value
        elif isinstance(kind, EnumType) and value in [*kind]:
            kept = kind(value)
        else:
            return convert(ctx, value)
        return kept if parameter.callback is None else parameter.callback(ctx, parameter, kept)

    parameter.process_value = process_value


class _PlainParameters:
    """The part of a command or group that lets its parameters keep values without a conversion."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, with the option `--help`."""
        parameters: Any = super().get_params(ctx)  # type: ignore[misc]
        for each in parameters:
            if "process_value" not in vars(each):
                _skip_conversion(each)
        return parameters


class TextCommand(_PlainParameters, TyperCommand):
    """A command that also accepts arguments such as "- a bullet", and the number 5.0 for 5.

    A word that begins with a dash and contains a space is an argument, because no option contains a space.
    """

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser of the words that follow the command."""
        parser: Any = super().make_parser(ctx)
        process_option = parser._process_opts  # noqa: SLF001  click has no public way

        def process_word(word: str, state: Any) -> None:
            if any(map(str.isspace, word.partition("=")[0])):
                state.largs.append(word)
            else:
                process_option(word, state)

        parse = parser.parse_args

        def parse_integers(args: list[str]) -> Any:
            found = parse(args)
            for each in self.params:
                value, kind = found[0].get(each.name), getattr(getattr(each, "type", None), "name", "")
                if kind.startswith("integer") and isinstance(value, str):
                    found[0][each.name] = value.removesuffix(".0")
            return found

        parser._process_opts, parser.parse_args = process_word, parse_integers  # noqa: SLF001
        return parser


class Group(_PlainParameters, TyperGroup):
    """A group of commands with the same first words, such as `review`; or the complete program."""

    def __init__(self, *, prefix: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self._prefix = f"{prefix} " if prefix else ""
        for each, row in TABLE.items():
            beginning, name = each[: len(self._prefix)], each[len(self._prefix) :]
            if beginning != self._prefix or " " in name:
                continue
            attributes: dict[str, Any] = {"name": name, "help": row.help, "rich_markup_mode": None}
            self.commands[name] = (
                TyperCommand(**attributes)
                if row.module
                else Group(prefix=each, no_args_is_help=True, **attributes)
            )

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands: for the program by section, for a group as one list."""
        if self._prefix:
            super().format_commands(ctx, formatter)
            return
        width = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                limit = formatter.width - 6 - width
                formatter.write_dl(
                    [(f"{name:{width}}", self.commands[name].get_short_help_str(limit)) for name in names]
                )

    def load(self, name: str) -> Any:
        """Load a command with its options, and return it.

        Before that, `commands` contains only its line of help.
        """
        words = self._prefix + name
        row, found = TABLE[words], self.commands[name]
        if row.module and found.callback is None:
            module = import_module(f"muniment.cli.{row.module}")
            function = words.replace(" ", "_")
            single_app = typer.Typer(
                rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
            )
            single_app.command(name, cls=TextCommand)(
                getattr(module, f"{function}_" if iskeyword(function) else function)
            )
            self.commands[name] = found = typer.main.get_command(single_app)
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the words of the user name, with its options loaded."""
        if not self._prefix and args[0] in ALIASES:
            args = [ALIASES[args[0]], *args[1:]]
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and self.load(args[0]), rest


app = typer.Typer(
    name="muniment",
    cls=Group,
    help=PROGRAM,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def _program(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(f"muniment {__version__}")
        raise typer.Exit
