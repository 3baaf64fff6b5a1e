"""Define the program: groups of commands. A command is loaded when it runs or when its help is printed.

A command is a function of the module that `TABLE` lists for it. The function's name is the command's words
joined by underscores: `review_list` is `muniment review list`. `command` defines the options and the exit
codes.
"""

from __future__ import annotations

from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from muniment.cli.table import GROUPS, PROGRAM, TABLE
from muniment.names import __version__


class TextCommand(TyperCommand):
    """A command that accepts "- a bullet" as an argument (no option contains a space), and 5.0 as 5."""

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser of the words after the command."""
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


class Group(TyperGroup):
    """The commands that share a prefix; without a prefix, the commands of the program."""

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
        """Write the commands of the program by section, or the commands of a group as one list."""
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
        """Return a command with its options; until then `commands` has only its line of help."""
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
        """Return the requested command, loaded."""
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
