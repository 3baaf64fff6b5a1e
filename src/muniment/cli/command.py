"""Turn a function into a command with `@command`, and define what all commands share.

The function's docstring is the help of the command and its keyword arguments are the options. Its result is
printed: a `Report` as one JSON document with `--json`, which every command has, otherwise as lines of text.
Options that belong together are one argument, a `TypedDict` of them, such as `MemoryFlags`. A function with
an argument `json` receives the value of `--json`.

C1 If a command fails with a `MunimentError`, it prints the error and its code, as a document or a line, and
   exits with 1.
C2 Ctrl-C exits with 130, and with a message if the command has one.
C3 The module of a command imports at its top what `--help` needs, and inside the function what its work
   needs.
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
from typing import TYPE_CHECKING, Any, get_type_hints, is_typeddict

import typer

from muniment.cli.options import Json, MemoryFlags
from muniment.cli.terminal import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    configure_logging,
    print_document,
    print_failure,
    print_line,
    print_notes,
)
from muniment.content.gates import clean_foreign_line
from muniment.errors import Cancelled, ConfigInvalid, ManagedMemoryUnavailable, MunimentError
from muniment.kernel.names import Trust

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.operations.job_context import JobContext
    from muniment.settings import Settings

# -- how it ends -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a command.

    Attributes:
        document: for `--json`; a callable if it takes work to build.
        lines: the text output; evaluated only if it is printed.
        notes: remarks for the user, printed before `lines`.
        problems: found problems, printed to standard error.
        error: the failure, printed after `lines`. The document already contains it.
        failure_prefix: the prefix of that failure, if it differs from the one of the command.
        code: the exit code without an error.
        indent: of the document; None: one line.
    """

    document: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    lines: Iterable[str] = ()
    notes: Iterable[str] = ()
    problems: Iterable[str] = ()
    error: MunimentError | None = None
    failure_prefix: str = ""
    code: int = 0
    indent: int | None = 2

    def emit(self, *, as_json: bool, default_prefix: str = "") -> int:
        """Print the result; return the exit code."""
        if as_json:
            document = self.document() if callable(self.document) else self.document
            print_document({**document}, indent=self.indent)
        else:
            print_notes(self.notes)
            for problem in self.problems:
                print(clean_foreign_line(problem), file=sys.stderr)
            for line in self.lines:
                print_line(line)
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
        failure_prefix: prefix of the line that reports a failure ("not saved"), or a function of the options.
        interrupt_message: the message after Ctrl-C; None: print no message.
        default_keys: the other keys of the document of a failure.
        indent: of that document; None: one line.
        has_json: the command has `--json`.
        precheck: raises `PlatformUnsupported` if this system cannot run the command (`not started`).
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
            for name, members in groups.items():
                given[name] = {member: given.pop(member) for member in members}
            raise typer.Exit(execute(given, as_json=as_json))

        def execute(given: dict[str, Any], *, as_json: bool) -> int:
            prefix = failure_prefix if isinstance(failure_prefix, str) else failure_prefix(given)
            configure_logging()
            try:
                return _print_result(function(**given), as_json=as_json, prefix=prefix)
            except MunimentError as error:
                failure = error
            except KeyboardInterrupt:
                if interrupt_message is None:
                    raise
                failure = Cancelled(interrupt_message)
            return print_failure(
                failure, as_json=as_json, prefix=prefix, default_keys=default_keys, indent=indent
            )

        del run_command.__wrapped__  # `run_command` has the options of `function`, expanded.
        run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run_command.__annotations__ = {each.name: each.annotation for each in parameters}
        return run_command

    return decorate


def _print_result(result: Report | int | None, *, as_json: bool, prefix: str) -> int:
    if isinstance(result, Report):
        return result.emit(as_json=as_json, default_prefix=prefix)
    return result or 0


def _expand_options(function: Callable[..., object]) -> tuple[list[inspect.Parameter], dict[str, list[str]]]:
    """Return the options of a function, and for each `TypedDict` argument the names of its options."""
    hints = get_type_hints(function, include_extras=True)
    parameters, groups = list[inspect.Parameter](), dict[str, list[str]]()
    for name, parameter in inspect.signature(function).parameters.items():
        if not is_typeddict(hints[name]):
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        members = get_type_hints(hints[name], include_extras=True)
        groups[name] = list(members)
        parameters += [_create_option(member, hint) for member, hint in members.items()]
    return parameters, groups


def _create_option(name: str, hint: Any) -> inspect.Parameter:
    default = False if name == "json" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


# -- the memory of a command -------------------------------------------------------------------------


def parse_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a command line as keyword arguments of `read_settings` and `muniment.open`.

    Args:
        flags: `MemoryFlags`, `RunFlags` or `ModelFlags`.

    Raises:
        ConfigInvalid: a root is not written as SCOPE=DIR, or a scope occurs twice.
    """
    from muniment.settings import parse_roots

    others = {name: value for name, value in flags.items() if name not in {"workspace", "root", "json"}}
    return {**others, "roots": parse_roots(flags.get("root") or ())}


def load_settings(*flags: Mapping[str, Any]) -> Settings:
    """Return the settings of the program, with the values of a command line; raise as `read_settings`."""
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
    """Open the memory that a command line selects; raise as `open_context`.

    Args:
        flags: the command line; with `--json` the user is never asked.
        settings: None: read them now.
        can_ask: the user may be asked which memory to use.
        create: create missing directories.
        reads_entries: entries are read, as in `open_context`.
        prints_advice: print `JobContext.advice`; False if the response contains it.
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
        PlatformUnsupported: this is not Linux.
    """
    import muniment.sandbox.fence  # noqa: F401  raises if the system is not Linux


def parse_trust(text: str) -> Trust:
    """Return the trust with the name `text`.

    Raises:
        ConfigInvalid: the name is unknown.
    """
    if text not in list(Trust):
        raise ConfigInvalid(f"unknown trust {text!r}; use one of {', '.join(Trust)}")
    return Trust(text)


@contextmanager
def convert_temp_errors() -> Iterator[None]:
    """Convert the errors of code that creates temporary files.

    Raises:
        ManagedMemoryUnavailable: the temporary directory cannot be used.
    """
    try:
        yield
    except OSError as error:
        raise ManagedMemoryUnavailable("the temporary directory", error.strerror or str(error)) from error


@contextmanager
def open_model_and_drop_key(settings: Settings) -> Iterator[Model]:
    """Open the model of the settings; raise as `open_model`.

    After its key is read, the key is removed from the environment, so that no process started later inherits
    it. The program may change its environment; the library does not change that of its caller.
    """
    from muniment.opening import open_model

    with open_model(settings, os.environ) as model:
        drop_key()
        yield model


def drop_key() -> None:
    """Remove the key of a model's server from the environment, see `open_model_and_drop_key`."""
    from muniment.settings import KEY_VARIABLE

    os.environ.pop(KEY_VARIABLE, None)
