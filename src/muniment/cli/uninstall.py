"""`muniment uninstall`: out of the coding tools, and nothing else without a word of its own.

U1 What there is is shown first; nothing is done without a `yes`.
U2 The memory goes only if that is asked for by itself: by `--erase-memory`, and at a terminal by a second
   answer. Then only what Muniment makes in its home goes; other files there, and memory in directories that
   were bound from elsewhere, stay, and are named.
U3 A daemon is never ended; while one runs no memory is erased.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment.cli.command import CommandAnswer, command, settings_of
from muniment.cli.options import Json
from muniment.cli.setup import Setting, Yes, require_setup_here
from muniment.cli.setup_files import kept_files
from muniment.cli.setup_tools import NAME, TOOLS
from muniment.cli.terminal import EXIT_FAILED, is_asked_on_terminal, on_one_line, say, says_yes
from muniment.errors import ConfigInvalid, printable

if TYPE_CHECKING:
    from muniment.settings import Settings

_OURS: Final = ("user", "projects", "projects.json", "state", "policies", "setup", "config.toml")
"""What Muniment makes in its home."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What there is of Muniment on this machine, for this user.

    Attributes:
        settings: where home is, and what is bound.
        tools: what has entries of ours, with the files.
        runs: a daemon does.
        entries: markdown files of the memory in the home.
        stays: what of the home would not go with the memory, or lies elsewhere, and why.
        notes: what could not be looked at, or was set up otherwise.
    """

    settings: Settings
    tools: tuple[tuple[Setting, tuple[Path, ...]], ...]
    runs: bool
    entries: int
    stays: tuple[str, ...]
    notes: tuple[str, ...]


@command("not uninstalled")
def uninstall(
    *,
    yes: Yes = False,
    erase_memory: Annotated[
        bool,
        typer.Option("--erase-memory", help="Erase the memory too, for good; you are asked a second time."),
    ] = False,
    json: Json = False,
) -> CommandAnswer:
    """Take Muniment out of the coding tools; the memory stays.

    What there is, what goes and what stays is shown first.
    """
    require_setup_here()
    done: list[str] = []
    erased = False
    found = look()
    home = found.settings.home
    if not json:
        _tell(found, erase_memory=erase_memory)
    if erase_memory:
        _check_erasable(found)
    agreed = yes or not found.tools or (not json and _agrees("take it out of these tools? [y/N] "))
    for setting, _ in found.tools if agreed else ():
        setting.write(setting.changes())
        done.append(setting.name)
    if agreed and erase_memory:
        agreed = erased = yes or (
            not json and _agrees(f"erase all memory in {on_one_line(str(home))}? [y/N] ")
        )
        if erased:
            _erase(home)
    return CommandAnswer(
        {
            "taken_out_of": done,
            "in_tools": [each.name for each, _ in found.tools if each.name not in done],
            "daemon_runs": found.runs,
            "home": printable(str(home)) if home.exists() else None,
            "entries": 0 if erased else found.entries,
            "erased": erased,
        },
        _left_lines(found, done, erased=erased),
        code=0 if agreed else EXIT_FAILED,
    )


def look() -> Installed:
    """What there is.

    Raises:
        ConfigInvalid: the home cannot be used.
    """
    settings = settings_of()
    tools: list[tuple[Setting, tuple[Path, ...]]] = []
    notes: list[str] = []
    usual: set[Path] = set()
    for name, tool in TOOLS.items():
        setting = Setting(name, tool, settings.home, None)
        usual.update(setting.files())
        try:
            files = tuple(setting.is_there())
            notes += setting.notes()
        except ConfigInvalid as error:
            notes.append(str(error))
            continue
        tools += [(setting, files)] if files else []
    notes += [
        f"{each.named} was set up with other variables; set them, then: {NAME} setup {each.tool} --remove"
        for each in kept_files(settings.home / "setup")
        if each.named not in usual and each.named.exists()
    ]
    memory = (settings.home / "user", settings.home / "projects")
    entries = sum(1 for each in memory for path in each.rglob("*.md") if path.name != "MEMORY.md")
    stays = [f"{path} (bound to {scope})" for scope, path in settings.roots.items()]
    stays += [f"{path} (not made by {NAME}, or a link)" for path in _foreign(settings.home)]
    return Installed(
        settings, tuple(tools), _daemon_runs(settings.state), entries, tuple(stays), tuple(notes)
    )


def _foreign(home: Path) -> list[Path]:
    """What lies in a home and is not ours to erase."""
    here = list(home.iterdir()) if home.is_dir() else []
    projects = home / "projects"
    inside = list(projects.iterdir()) if projects in here and not projects.is_symlink() else []
    kept = [each for each in here if each.name not in _OURS or each.is_symlink()]
    return sorted([*kept, *(each for each in inside if not _is_project(each))])


def _is_project(path: Path) -> bool:
    from muniment.projects import PROJECT_ID

    return PROJECT_ID.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _daemon_runs(state: Path) -> bool:
    """Whether a daemon holds the lock of a state directory."""
    import fcntl

    try:
        fd = os.open(state / "daemon.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _check_erasable(found: Installed) -> None:
    """Raise unless the home may be erased (U2, U3).

    Raises:
        ConfigInvalid: a daemon runs, or the home is not one of ours.
    """
    home = found.settings.home
    if found.runs:
        raise ConfigInvalid(f"a daemon runs for {home}; end it first, then run this again; nothing was done")
    is_bare = home.is_dir() and not _foreign(home)
    if not is_bare and not (found.settings.state / "ledger.db").is_file():
        raise ConfigInvalid(f"{home} holds no ledger of {NAME}; nothing was erased")
    if Path.home().resolve().is_relative_to(home.resolve()):
        raise ConfigInvalid(f"{home} is or holds your home directory; erase what you mean by hand")


def _erase(home: Path) -> None:
    """Erase what Muniment makes in its home; the state last, by which it is known as a home.

    Raises:
        ConfigInvalid: something cannot be removed; what is left can be erased by asking again.
    """
    foreign = set(_foreign(home))
    targets = [each for each in (home / name for name in _OURS) if each not in foreign]
    projects = home / "projects"
    has_projects = projects in targets and projects.is_dir()
    inside = [each for each in projects.iterdir() if each not in foreign] if has_projects else []
    try:
        for path in (*inside, *sorted(targets, key=lambda each: each.name == "state")):
            if path.is_dir():
                if path != projects:
                    shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for directory in (projects, home):
            if directory.is_dir() and not directory.is_symlink() and not any(directory.iterdir()):
                directory.rmdir()
    except OSError as error:
        raise ConfigInvalid(f"{error.filename} cannot be removed: {error.strerror}; run this again") from None


def _agrees(question: str) -> bool:
    return is_asked_on_terminal() and says_yes(question)


def _tell(found: Installed, *, erase_memory: bool) -> None:
    """What there is, and what is about to become of it (U1)."""
    for setting, files in found.tools:
        say(on_one_line(f"goes: the entries in {setting.tool.title} ({', '.join(map(str, files))})"))
    if not found.tools:
        say("no coding tool has entries of Muniment")
    if found.runs:
        say("stays: the daemon that runs; end it where it was started")
    if found.settings.home.exists():
        what = "goes for good, if you say yes again" if erase_memory else "stays"
        say(
            on_one_line(
                f"{what}: {found.settings.home}, with {found.entries} entries, their history and settings"
            )
        )
    for each in found.stays:
        say(on_one_line(f"stays: {each}"))
    for note in found.notes:
        say(on_one_line(f"note: {note}"))


def _left_lines(found: Installed, done: list[str], *, erased: bool) -> Iterator[str]:
    if done:
        yield f"taken out of {', '.join(done)}"
    elif found.tools:
        yield "nothing was changed; answer yes at a terminal, or give --yes"
    if erased:
        yield on_one_line(f"erased: the memory in {found.settings.home}")
    elif found.settings.home.exists():
        yield f"to erase the memory too: {NAME} uninstall --erase-memory"
    yield f"to remove the program: pip uninstall {NAME}, or uv tool uninstall {NAME}, as you installed it"
