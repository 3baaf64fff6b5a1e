"""What a command is, and what all of them do alike: `@command` above a function is all that it takes.

The function's docstring is its help, its keyword arguments are its options, and what it returns is printed:
a `Report` as one JSON document with `--json`, which every command has, else as lines for a person.
Options that belong together are one argument, a `TypedDict` of them, such as `MemoryFlags`; a function that
names `json` is told it.

C1 What is refused or fails, a `MunimentError`, is told with its code, as document or line, and ends with 1.
C2 Ctrl-C ends with 130, and with a word where the command has one for it.
C3 The module of a command loads at its top what its `--help` needs, and in the function what its work needs.
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
    say,
    say_notes,
)
from muniment.content.gates import on_one_line
from muniment.errors import Cancelled, ConfigInvalid, ManagedMemoryUnavailable, MunimentError
from muniment.kernel.names import Trust

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.operations.place import Place
    from muniment.settings import Settings

# -- how it ends -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a command.

    Attributes:
        document: for a program, or what makes it, where that takes work.
        lines: for a person; made only if they are printed.
        notes: what a person should know besides, before them.
        problems: what is wrong, on standard error, likewise.
        error: why it came to nothing, or no more; for a person behind `lines`. The document has it already.
        what: what did not happen then, if that is not what the command says.
        code: the exit code, if there is no error.
        indent: of the document; None: it is one line.
    """

    document: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    lines: Iterable[str] = ()
    notes: Iterable[str] = ()
    problems: Iterable[str] = ()
    error: MunimentError | None = None
    what: str = ""
    code: int = 0
    indent: int | None = 2

    def tell(self, *, as_json: bool, what: str = "") -> int:
        """Print it; the exit code."""
        if as_json:
            document = self.document() if callable(self.document) else self.document
            print_document({**document}, indent=self.indent)
        else:
            say_notes(self.notes)
            for problem in self.problems:
                print(on_one_line(problem), file=sys.stderr)
            for line in self.lines:
                say(line)
            if self.error is not None:
                print_failure(self.error, as_json=False, what=self.what or what)
        if self.error is None:
            return self.code
        return EXIT_CANCELLED if isinstance(self.error, Cancelled) else EXIT_FAILED


def command(
    what: str | Callable[[Mapping[str, Any]], str],
    *,
    interrupted: str | None = None,
    blank: Mapping[str, Any] = MappingProxyType({}),
    indent: int | None = 2,
    has_json: bool = True,
    before: Callable[[], None] | None = None,
) -> Callable[[Callable[..., Report | int | None]], Callable[..., None]]:
    """Make a function a command.

    Args:
        what: what did not happen where it fails, for the line that tells so; or what says it, by the options.
        interrupted: what Ctrl-C came to; None: nothing is said of it.
        blank: the other keys of the document of a failure.
        indent: of that document; None: it is one line.
        has_json: it has `--json`.
        before: raises where this system cannot do it at all, which is told as everywhere: `not started`.
    """

    def declared(function: Callable[..., Report | int | None]) -> Callable[..., None]:
        parameters, groups = _expanded(function)
        is_told = any(each.name == "json" for each in parameters)
        if has_json and not is_told:
            parameters.append(_option("json", Json))
        parameters.sort(key=lambda each: each.name == "json")  # The last of the options.

        @wraps(function)
        def run(**given: Any) -> None:
            if before is not None:
                before()
            as_json = bool(given.get("json") if is_told else given.pop("json", False))
            for name, members in groups.items():
                given[name] = {member: given.pop(member) for member in members}
            raise typer.Exit(carried_out(given, as_json=as_json))

        def carried_out(given: dict[str, Any], *, as_json: bool) -> int:
            told = what if isinstance(what, str) else what(given)
            configure_logging()
            try:
                found = function(**given)
                return found.tell(as_json=as_json, what=told) if isinstance(found, Report) else found or 0
            except MunimentError as error:
                failure = error
            except KeyboardInterrupt:
                if interrupted is None:
                    raise
                failure = Cancelled(interrupted)
            return print_failure(failure, as_json=as_json, what=told, blank=blank, indent=indent)

        del run.__wrapped__  # Its options are those of `function`, expanded.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return declared


def _expanded(function: Callable[..., object]) -> tuple[list[inspect.Parameter], dict[str, list[str]]]:
    """The options of a function, and which of them are members of which argument."""
    hints = get_type_hints(function, include_extras=True)
    parameters, groups = list[inspect.Parameter](), dict[str, list[str]]()
    for name, parameter in inspect.signature(function).parameters.items():
        if not is_typeddict(hints[name]):
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        members = get_type_hints(hints[name], include_extras=True)
        groups[name] = list(members)
        parameters += [_option(member, hint) for member, hint in members.items()]
    return parameters, groups


def _option(name: str, hint: Any) -> inspect.Parameter:
    default = False if name == "json" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


# -- the memory that is meant ------------------------------------------------------------------------


def flags_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a command line says, as `read_settings` and `muniment.open` take it.

    Args:
        said: `MemoryFlags`, `RunFlags` or `ModelFlags`.

    Raises:
        ConfigInvalid: a root has another shape than SCOPE=DIR, or names a scope twice.
    """
    from muniment.settings import parse_roots

    others = {name: value for name, value in said.items() if name not in {"workspace", "root", "json"}}
    return {**others, "roots": parse_roots(said.get("root") or ())}


def settings_of(*said: Mapping[str, Any]) -> Settings:
    """The settings of the program, with what a command line says; raises as `read_settings`."""
    from muniment.settings import read_settings

    return read_settings(os.environ, **flags_of({name: each[name] for each in said for name in each}))


@contextmanager
def place_at(
    where: MemoryFlags,
    *,
    settings: Settings | None = None,
    asks: bool = True,
    create: bool = False,
    reads: bool = False,
    advises: bool = True,
) -> Iterator[Place]:
    """The memory that a command line means; raises as `find_place`.

    Args:
        where: the command line; with `--json` nobody is asked anything.
        settings: as they were read; None: they are read now.
        asks: somebody may be asked which memory is meant.
        create: make what is not there yet.
        reads: entries are read, as `find_place`.
        advises: print `Place.advice`; False if the answer has it.
    """
    from muniment.cli.which_memory import ask_which_memory
    from muniment.opening import find_place

    settings = settings or settings_of(where)
    if asks:
        ask_which_memory(settings, where["workspace"], as_json=where["json"])
    with closing(find_place(settings, where["workspace"], create=create, reads=reads)) as place:
        say_notes((*place.notes, *place.advice) if advises else place.notes)
        yield place


# -- what some of them share -------------------------------------------------------------------------


def require_fence() -> None:
    """Raise where nothing can be fenced.

    Raises:
        PlatformUnsupported: this is not Linux.
    """
    import muniment.sandbox.fence  # noqa: F401  asks for the system


def trust_of(text: str) -> Trust:
    """The trust of that name.

    Raises:
        ConfigInvalid: there is none.
    """
    if text not in list(Trust):
        raise ConfigInvalid(f"there is no trust {text!r}; there are {', '.join(Trust)}")
    return Trust(text)


@contextmanager
def temporary_directory() -> Iterator[None]:
    """Around what makes files there.

    Raises:
        ManagedMemoryUnavailable: it could not.
    """
    try:
        yield
    except OSError as error:
        raise ManagedMemoryUnavailable("the temporary directory", error.strerror or str(error)) from error


@contextmanager
def model_of(settings: Settings) -> Iterator[Model]:
    """The model of the settings; raises as `open_model`.

    Once its key was read that goes out of the environment, so that no process that is started from now on
    inherits it. The program owns its environment; the library does not, and leaves that of its caller alone.
    """
    from muniment.opening import open_model

    with open_model(settings, os.environ) as model:
        forget_key()
        yield model


def forget_key() -> None:
    """Take the key of a model's server out of the environment, see `model_of`."""
    from muniment.settings import KEY_VARIABLE

    os.environ.pop(KEY_VARIABLE, None)
