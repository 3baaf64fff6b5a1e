"""Create the scripts of `muniment completion`, which contain all commands and options.

So completing a word starts no program. A new version may have other commands: the shell therefore loads the
script again whenever it starts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple

import typer

from muniment.cli.command import Report, command
from muniment.cli.options import ShellName, ToolName

_CHOICE: Final = re.compile(r"[a-z-]+(?:\|[a-z-]+)+")
"""Matches a metavar that lists all possible values of an option or argument, such as `rules|fail`."""

_ENUMS: Final[dict[str, list[str]]] = {"TOOL": list(ToolName), "SHELL": list(ShellName)}
"""The possible values of an argument, by its metavar."""

_BASH: Final = """\
_muniment() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" last="${{COMP_WORDS[COMP_CWORD-1]}}" at="" each="" words=""
  for each in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
    case "${{at:+$at }}$each" in
      {commands}) at="${{at:+$at }}$each" ;;
    esac
  done
  case "$at $last" in
{values}
    *)
      if [[ "$word" == -* ]]; then
        case "$at" in
{options}
        esac
      else
        case "$at" in
{others}
        esac
      fi ;;
  esac
  COMPREPLY=( $(compgen -W "$words" -- "$word") )
}}
complete -o default -F _muniment muniment
"""

_FISH: Final = """\
function __muniment_at
  set -l at
  for each in (commandline -opc)[2..-1]
    set -l next (string trim -- "$at $each")
    contains -- $next {commands}; and set at $next
  end
  test "$at" = "$argv"
end
"""


class _Command(NamedTuple):
    """A command, or the complete program, as the scripts need it.

    Attributes:
        name: the words of the command, such as `policy lint`; empty for the program.
        options: for each long option name: its help, its possible values (None: any), and whether it has a
            value.
        next_words: other words that may follow, with their help: subcommands, and values of arguments.
    """

    name: str
    options: dict[str, tuple[str, list[str] | None, bool]]
    next_words: dict[str, str]


@command("", has_json=False)
def completion(
    *, context: typer.Context, shell: Annotated[ShellName, typer.Argument(metavar="SHELL")]
) -> Report:
    """Print the completion script for a shell.

    It completes commands and options.

    For bash: eval "$(muniment completion bash)" in ~/.bashrc. For zsh the same in ~/.zshrc, after compinit.
    For fish: muniment completion fish > ~/.config/fish/completions/muniment.fish
    """
    commands = list(_list_commands(context.find_root().command, ""))
    script = _create_fish_script(commands) if shell == "fish" else _create_bash_script(commands)
    begin = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return Report({}, [(begin + script).rstrip("\n")])


def _list_commands(found: Any, command_name: str) -> Iterator[_Command]:
    """Yield a command and all of its subcommands.

    Args:
        found: the command, as `click` represents it.
        command_name: the words of the command; empty for the program.
    """
    subcommands = {name: found.load(name) for name in getattr(found, "commands", ())}
    options: dict[str, tuple[str, list[str] | None, bool]] = {"--help": ("Show help.", None, False)}
    others = {name: _get_first_line(each.help) for name, each in subcommands.items()}
    for parameter in found.params:
        metavar = parameter.metavar or ""
        values = metavar.split("|") if _CHOICE.fullmatch(metavar) else _ENUMS.get(metavar)
        if parameter.param_type_name == "argument":
            others |= dict.fromkeys(values or (), "")
        else:
            has_value = not parameter.is_flag
            help_line = _get_first_line(parameter.help)
            options |= {
                name: (help_line, values, has_value) for name in parameter.opts if name.startswith("--")
            }
    yield _Command(command_name, options, others)
    for name, each in subcommands.items():
        yield from _list_commands(each, f"{command_name} {name}".strip())


def _get_first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _create_bash_script(commands: list[_Command]) -> str:
    def case(pattern: str, words: list[str]) -> str:
        return f"    {pattern}) words={shlex.quote(' '.join(words))} ;;"

    values = [
        case(shlex.quote(f"{each.name} {name}"), found)
        for each in commands
        for name, (_, found, _) in each.options.items()
        if found
    ]
    options = [case(f'"{each.name}"', list(each.options)) for each in commands]
    others = [case(f'"{each.name}"', list(each.next_words)) for each in commands if each.next_words]
    return _BASH.format(
        commands=" | ".join(f'"{each.name}"' for each in commands if each.name),
        values="\n".join(values),
        options="\n".join(f"      {line}" for line in options),
        others="\n".join(f"      {line}" for line in others),
    )


def _create_fish_script(commands: list[_Command]) -> str:
    lines = [_FISH.format(commands=" ".join(shlex.quote(each.name) for each in commands if each.name))]
    for each in commands:
        begin = f"complete -c muniment -n {_quote_for_fish(f'__muniment_at {each.name}'.strip())}"
        lines += [
            f"{begin} -f -a {name} -d {_quote_for_fish(help_line)}"
            for name, help_line in each.next_words.items()
        ]
        for name, (help_line, values, has_value) in each.options.items():
            value = f" -x -a {_quote_for_fish(' '.join(values))}" if values else " -r" if has_value else ""
            lines.append(f"{begin} -l {name.removeprefix('--')}{value} -d {_quote_for_fish(help_line)}")
    return "\n".join(lines)


def _quote_for_fish(text: str) -> str:
    """Return a text in single quotes for the shell fish, with backslashes and quotes escaped."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
