"""Turn a function into a command with `@command`, and define the common behaviour of all commands.

The docstring of the function is the help of the command, and its keyword arguments are the options. The
result of the function is printed: a `Report` as lines of text, or with `--json` as one JSON document. Options
that belong together are one argument, whose type is a `TypedDict` of them, such as `MemoryFlags`. Every
command has `--json`; if the function has an argument `json`, it receives the value.

C1 If a command fails with a `MunimentError`, it prints the error and its code, as a line or a JSON document,
   and exits with 1.
C2 Ctrl-C exits with 130. The command prints a message if it defines one.
C3 The module of a command imports at its top only what `--help` needs. Each function imports what its work
   needs.
C4 A command that takes more than a second shows its progress on a terminal (`cli.progress`).
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, get_type_hints, is_typeddict

import typer

from muniment.cli.options import Json, MemoryFlags
from muniment.cli.suggestions import add_choices
from muniment.cli.terminal import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    choose_color,
    configure_logging,
    print_document,
    print_failure,
    print_lines,
    print_notes,
    show_progress,
)
from muniment.content.gates import clean_foreign_line
from muniment.errors import Cancelled, ConfigInvalid, ManagedMemoryUnavailable, MunimentError
from muniment.kernel.names import Trust

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.operations.job_context import JobContext
    from muniment.settings import Settings

_COLOR_CHOICES: Final = ("auto", "always", "never")

# -- how it ends -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a command, in every form in which it may be printed.

    Attributes:
        document: the JSON document for `--json`, or a function that builds it.
        lines: the lines of the text output; evaluated only if they are printed.
        notes: notices for the user, which are printed before `lines` on standard error.
        problems: problems that the command found, which are printed on standard error.
        error: the failure of the operation, which is printed after `lines`; the document already contains it.
        failure_prefix: the beginning of the line with this failure; empty: use the prefix of the command.
        code: the exit code without an error.
        indent: the indentation of the JSON document; None: print it on one line.
        remarks: sentences about the lines, such as "nothing is saved here yet", which are printed after them:
            on a terminal below them, otherwise on standard error, so that a pipe contains only records.
    """

    document: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    lines: Iterable[str] = ()
    notes: Iterable[str] = ()
    problems: Iterable[str] = ()
    error: MunimentError | None = None
    failure_prefix: str = ""
    code: int = 0
    indent: int | None = 2
    remarks: Iterable[str] = ()

    def emit(self, *, as_json: bool, default_prefix: str = "") -> int:
        """Print the result, and return the exit code.

        Args:
            as_json: print the JSON document instead of lines.
            default_prefix: the beginning of the line with a failure, if the report does not define one.
        """
        if as_json:
            document = self.document() if callable(self.document) else self.document
            print_document({**document}, indent=self.indent)
        else:
            print_notes(self.notes)
            for problem in self.problems:
                print(clean_foreign_line(problem), file=sys.stderr)
            print_lines(self.lines)
            if sys.stdout.isatty():
                print_lines(self.remarks)
            else:
                print_notes(self.remarks)
            if self.error is not None:
                print_failure(self.error, as_json=False, prefix=self.failure_prefix or default_prefix)
        if self.error is None:
            return self.code
        return EXIT_CANCELLED if isinstance(self.error, Cancelled) else EXIT_FAILED


def command(
    failure_prefix: str | Callable[[Mapping[str, Any]], str],
    *,
    interrupt_message: str | None = None,
    default_keys: Mapping[str, Any] = MappingProxyType({}),
    indent: int | None = 2,
    has_json: bool = True,
    precheck: Callable[[], None] | None = None,
) -> Callable[[Callable[..., Report | int | None]], Callable[..., None]]:
    """Return a decorator that turns a function into a command.

    Args:
        failure_prefix: the beginning of the line that reports a failure, such as "not saved"; or a function
            that returns it for the values of the options.
        interrupt_message: the message after Ctrl-C; None: print no message.
        default_keys: keys that the JSON document of a failure has in addition to `status` and `error`.
        indent: the indentation of that document; None: print it on one line.
        has_json: whether the command has the option `--json`.
        precheck: a function that raises `PlatformUnsupported` if this system cannot run the command.
    """

    def decorate(function: Callable[..., Report | int | None]) -> Callable[..., None]:
        parameters, groups = _expand_options(function)
        has_json_argument = any(each.name == "json" for each in parameters)
        if has_json and not has_json_argument:
            parameters.append(_create_option("json", Json))
        parameters.sort(key=lambda each: each.name == "json")  # Move `json` to the end of the options.

        @wraps(function)
        def run_command(**given: Any) -> None:
            if precheck is not None:
                precheck()
            as_json = bool(given.get("json") if has_json_argument else given.pop("json", False))
            _apply_color(given.get("color"))
            for name, members in groups.items():
                given[name] = {member: given.pop(member) for member in members}
            raise typer.Exit(execute(given, as_json=as_json))

        def execute(given: dict[str, Any], *, as_json: bool) -> int:
            prefix = failure_prefix if isinstance(failure_prefix, str) else failure_prefix(given)
            configure_logging()
            try:
                return _run_and_print(function, given, as_json=as_json, prefix=prefix)
            except MunimentError as error:
                failure = error
            except KeyboardInterrupt:
                if interrupt_message is None:
                    raise
                failure = Cancelled(interrupt_message)
            return print_failure(
                failure, as_json=as_json, prefix=prefix, default_keys=default_keys, indent=indent
            )

        # The signature of `run_command` must not be that of `function`, but contain its options.
        del run_command.__wrapped__
        run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run_command.__annotations__ = {each.name: each.annotation for each in parameters}
        return run_command

    return decorate


def _apply_color(choice: str | None) -> None:
    """Use the value of the option `--color`; without it, `auto`."""
    if choice not in {None, *_COLOR_CHOICES}:
        raise typer.BadParameter(
            f"unknown value {choice!r}; use one of {', '.join(_COLOR_CHOICES)}", param_hint="--color"
        )
    choose_color(choice or "auto")


def _run_and_print(
    function: Callable[..., Report | int | None], given: Mapping[str, Any], *, as_json: bool, prefix: str
) -> int:
    with show_progress():
        result = function(**given)
    if isinstance(result, Report):
        return result.emit(as_json=as_json, default_prefix=prefix)
    return result or 0


def _expand_options(function: Callable[..., object]) -> tuple[list[inspect.Parameter], dict[str, list[str]]]:
    """Return the options of a function, with each `TypedDict` argument replaced by its members.

    Returns:
        The options, and for each `TypedDict` argument the names of the options that it consists of.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters, groups = list[inspect.Parameter](), dict[str, list[str]]()
    for name, parameter in inspect.signature(function).parameters.items():
        if not is_typeddict(hints[name]):
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        members = get_type_hints(hints[name], include_extras=True)
        groups[name] = list(members)
        parameters += [_create_option(member, hint) for member, hint in members.items()]
    add_choices(each.annotation for each in parameters)
    return parameters, groups


def _create_option(name: str, hint: Any) -> inspect.Parameter:
    default = False if name == "json" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


# -- the memory of a command -------------------------------------------------------------------------


def parse_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of a command line to keyword arguments for `read_settings` and `muniment.open`.

    Args:
        flags: the values, as `MemoryFlags`, `RunFlags` or `ModelFlags`.

    Raises:
        ConfigInvalid: a root is not written as SCOPE=DIR, or a scope occurs twice.
    """
    from muniment.settings import parse_roots

    others = {
        name: value for name, value in flags.items() if name not in {"workspace", "root", "color", "json"}
    }
    return {**others, "roots": parse_roots(flags.get("root") or ())}


def load_settings(*flags: Mapping[str, Any]) -> Settings:
    """Return the settings of the program; values of a command line override the configuration.

    Args:
        flags: values of the command line, as `MemoryFlags`, `RunFlags` or `ModelFlags`.

    Raises:
        ConfigInvalid: as `read_settings`.
    """
    from muniment.settings import read_settings

    return read_settings(os.environ, **parse_flags({name: each[name] for each in flags for name in each}))


@contextmanager
def open_command_context(
    flags: MemoryFlags,
    *,
    settings: Settings | None = None,
    can_ask: bool = True,
    create: bool = False,
    reads_entries: bool = False,
    prints_advice: bool = True,
) -> Iterator[JobContext]:
    """Open the memory that the options of a command select, for the block. Raises as `open_context`.

    Args:
        flags: the options; with `--json` the user is never asked a question.
        settings: the settings of the program; None: read them now.
        can_ask: whether the user may be asked which memory to use.
        create: whether to create missing default directories; otherwise their scopes are omitted.
        reads_entries: whether the command reads entries; a state directory is then created as their cache.
        prints_advice: whether to print `JobContext.advice`; False: the response of the command contains it.
    """
    from muniment.cli.which_memory import ask_which_memory
    from muniment.opening import open_context

    settings = settings or load_settings(flags)
    if can_ask:
        ask_which_memory(settings, flags["workspace"], as_json=flags["json"])
    with closing(
        open_context(settings, flags["workspace"], create=create, is_reader=reads_entries)
    ) as context:
        print_notes((*context.notes, *context.advice) if prints_advice else context.notes)
        yield context


# -- shared by some commands -------------------------------------------------------------------------


def require_fence() -> None:
    """Check that this system can confine workers.

    Raises:
        PlatformUnsupported: this system is not Linux.
    """
    import muniment.sandbox.fence  # noqa: F401  raises if the system is not Linux


def parse_trust(text: str) -> Trust:
    """Convert a text to a trust.

    Raises:
        ConfigInvalid: the text is not the name of a trust.
    """
    if text not in list(Trust):
        raise ConfigInvalid(f"unknown trust {text!r}; use one of {', '.join(Trust)}")
    return Trust(text)


@contextmanager
def convert_temp_errors() -> Iterator[None]:
    """Convert an `OSError` in the block, which creates temporary files, to an error with a code.

    Raises:
        ManagedMemoryUnavailable: the temporary directory cannot be used.
    """
    try:
        yield
    except OSError as error:
        raise ManagedMemoryUnavailable("the temporary directory", error.strerror or str(error)) from error


@contextmanager
def open_model_and_drop_key(settings: Settings) -> Iterator[Model]:
    """Open the model of the settings for the block, then remove its key from the environment.

    Raises as `open_model`.

    Without the key in the environment, no process that is started later can inherit it. Only the program does
    this:
    the library does not change the environment of its caller.
    """
    from muniment.opening import open_model

    with open_model(settings, os.environ) as model:
        drop_key()
        yield model


def drop_key() -> None:
    """Remove the key of the model's server from the environment: later processes must not inherit it."""
    from muniment.settings import KEY_VARIABLE

    os.environ.pop(KEY_VARIABLE, None)
