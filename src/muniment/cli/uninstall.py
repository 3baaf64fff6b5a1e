"""Implement `muniment uninstall`: remove Muniment from the coding tools, and erase the memory on request.

U1 The existing parts are shown first; nothing is done without a confirmation.
U2 The memory is removed only with `--erase-memory`, and at a terminal only after a second confirmation. Even
   then, only files that Muniment creates in its home are removed. Other files in the home stay, and so does
   memory in bound directories outside of it. The command lists them.
U3 A daemon is never ended, except by the removal of the service that setup wrote. While one runs, no memory
   is erased.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment.cli.command import Report, command, load_settings
from muniment.cli.options import Json
from muniment.cli.service import DaemonService, is_daemon_running
from muniment.cli.setup import ToolSetup, Yes, require_setup_support
from muniment.cli.terminal import EXIT_FAILED, confirm_change, print_line
from muniment.content.gates import clean_foreign_line
from muniment.errors import ConfigInvalid, printable
from muniment.integrations.coding_tools.files import list_saved_files
from muniment.integrations.coding_tools.tools import NAME, TOOLS

if TYPE_CHECKING:
    from muniment.settings import Settings

_GENERATED: Final = ("user", "projects", "projects.json", "state", "policies", "setup", "config.toml")
"""Names of the files and directories that Muniment creates in its home."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The parts of Muniment that exist on this machine, for this user.

    Attributes:
        settings: the settings, with the home and the bound roots.
        tools: the coding tools with entries of Muniment, and for each one the files with these entries.
        service: the service that runs the daemon; None: setup did not write one.
        is_daemon_running: whether a daemon runs for the home.
        entries: the number of entries in the home.
        remaining: paths that stay even if the memory is erased, each with the reason.
        notes: problems for the user, such as tools that were set up with other environment variables.
    """

    settings: Settings
    tools: tuple[tuple[ToolSetup, tuple[Path, ...]], ...]
    service: DaemonService | None
    is_daemon_running: bool
    entries: int
    remaining: tuple[str, ...]
    notes: tuple[str, ...]


@command("not uninstalled")
def uninstall(
    *,
    yes: Yes = False,
    erase_memory: Annotated[
        bool,
        typer.Option("--erase-memory", help="Also erase the memory permanently, after a second question."),
    ] = False,
    json: Json = False,
) -> Report:
    """Remove Muniment from the coding tools; the memory stays.

    The command first shows what it will remove and what stays, and asks for confirmation.
    """
    require_setup_support()
    erased = False
    found = find_installation()
    home = found.settings.home
    if not json:
        _print_installation(found, erase_memory=erase_memory)
    if erase_memory:
        _check_erasable(found)
    has_parts = bool(found.tools or found.service)
    is_removed = is_confirmed = yes or not has_parts or (not json and confirm_change("remove these parts?"))
    for setting, _ in found.tools if is_removed else ():
        setting.write(setting.changes())
    service = "installed" if found.service else None
    if is_removed and found.service:
        service = found.service.remove(yes=True, quiet=True).status
    if is_removed and erase_memory:
        is_confirmed = erased = yes or (
            not json and confirm_change(f"erase all memory in {clean_foreign_line(str(home))}?")
        )
        if erased:
            _require_stopped(found.settings)
            _erase(home)
    return Report(
        {
            "taken_out_of": [each.name for each, _ in found.tools if is_removed],
            "service": service,
            "in_tools": [each.name for each, _ in found.tools if not is_removed],
            "daemon_runs": found.is_daemon_running,
            "home": printable(str(home)) if home.exists() else None,
            "entries": 0 if erased else found.entries,
            "erased": erased,
        },
        _format_uninstall_result(found, is_removed=is_removed, erased=erased),
        code=0 if is_confirmed else EXIT_FAILED,
    )


def find_installation() -> Installation:
    """Find the parts of Muniment that exist on this machine, for this user.

    Raises:
        ConfigInvalid: the home cannot be used.
    """
    settings = load_settings()
    tools: list[tuple[ToolSetup, tuple[Path, ...]]] = []
    notes: list[str] = []
    default_files: set[Path] = set()
    for name, tool in TOOLS.items():
        setting = ToolSetup(name, tool, settings.home, None)
        default_files.update(setting.files())
        try:
            files = tuple(setting.list_installed())
            notes += setting.notes()
        except ConfigInvalid as error:
            notes.append(str(error))
            continue
        tools += [(setting, files)] if files else []
    service = DaemonService(settings.home)
    default_files.add(service.path)
    try:
        is_service_installed = service.is_installed()
    except ConfigInvalid as error:
        notes.append(str(error))
        is_service_installed = False
    notes += [
        f"{each.configured_path} was set up with other environment variables; "
        f"set them again, then run: {NAME} setup {each.tool} --remove"
        for each in list_saved_files(settings.home / "setup")
        if each.configured_path not in default_files and each.configured_path.exists()
    ]
    memory = (settings.home / "user", settings.home / "projects")
    entries = sum(1 for each in memory for path in each.rglob("*.md") if path.name != "MEMORY.md")
    remaining = [f"{path} (bound to {scope})" for scope, path in settings.roots.items()]
    remaining += [f"{path} (not created by {NAME}, or a link)" for path in _list_foreign_files(settings.home)]
    return Installation(
        settings,
        tuple(tools),
        service if is_service_installed else None,
        is_daemon_running(settings.state),
        entries,
        tuple(remaining),
        tuple(notes),
    )


def _list_foreign_files(home: Path) -> list[Path]:
    """Return the files in a home that Muniment did not create, and all links there."""
    home_files = list(home.iterdir()) if home.is_dir() else []
    projects = home / "projects"
    project_files = list(projects.iterdir()) if projects in home_files and not projects.is_symlink() else []
    foreign = [each for each in home_files if each.name not in _GENERATED or each.is_symlink()]
    return sorted([*foreign, *(each for each in project_files if not _is_project(each))])


def _is_project(path: Path) -> bool:
    from muniment.workspaces.projects import PROJECT_ID

    return PROJECT_ID.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _check_erasable(found: Installation) -> None:
    """Check that the memory may be erased: no daemon runs, and the directory is a home of Muniment.

    Raises:
        ConfigInvalid: a daemon runs, or the directory is not a home of Muniment.
    """
    home = found.settings.home
    if not found.service:
        _require_stopped(found.settings)
    is_muniment_home = home.is_dir() and not _list_foreign_files(home)
    if not is_muniment_home and not (found.settings.state / "ledger.db").is_file():
        raise ConfigInvalid(f"{home} contains no ledger of {NAME}, so it is not a home; nothing was erased")
    if Path.home().resolve().is_relative_to(home.resolve()):
        raise ConfigInvalid(f"{home} is or contains your home directory; erase the files by hand")


def _require_stopped(settings: Settings) -> None:
    if is_daemon_running(settings.state):
        raise ConfigInvalid(
            f"a daemon runs for {settings.home}; stop it first, then run this again; nothing was erased"
        )


def _erase(home: Path) -> None:
    """Erase the files that Muniment creates in its home.

    The state is erased last, because it identifies the home.

    Raises:
        ConfigInvalid: a file cannot be removed. If the user runs the command again, it erases the rest.
    """
    foreign = set(_list_foreign_files(home))
    targets = [each for each in (home / name for name in _GENERATED) if each not in foreign]
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
        raise ConfigInvalid(
            f"cannot remove {error.filename}: {error.strerror}; solve this, then run the command again"
        ) from None


def _print_installation(found: Installation, *, erase_memory: bool) -> None:
    """Print the existing parts of Muniment, and for each part whether it will be removed or stays."""
    for setting, files in found.tools:
        print_line(
            clean_foreign_line(
                f"to remove: the entries in {setting.tool.title} ({', '.join(map(str, files))})"
            )
        )
    if found.service:
        print_line(clean_foreign_line(f"to remove: the daemon service ({found.service.path})"))
    if not found.tools:
        print_line("no coding tool has entries of Muniment")
    if found.is_daemon_running and not found.service:
        print_line("stays: the running daemon; stop it separately")
    if found.settings.home.exists():
        what = "to erase permanently, after a second question" if erase_memory else "stays"
        print_line(
            clean_foreign_line(
                f"{what}: {found.settings.home}, with {found.entries} entries, their history and settings"
            )
        )
    for each in found.remaining:
        print_line(clean_foreign_line(f"stays: {each}"))
    for note in found.notes:
        print_line(clean_foreign_line(f"note: {note}"))


def _format_uninstall_result(found: Installation, *, is_removed: bool, erased: bool) -> Iterator[str]:
    parts = [f"the entries in {setting.tool.title}" for setting, _ in found.tools]
    parts += ["the daemon service"] if found.service else []
    if not is_removed:
        yield "nothing was changed; answer yes at a terminal, or use --yes"
    elif parts:
        yield f"removed: {', '.join(parts)}"
    if erased:
        yield clean_foreign_line(f"erased: the memory in {found.settings.home}")
    elif found.settings.home.exists():
        yield f"to also erase the memory: {NAME} uninstall --erase-memory"
    yield f"to remove the program: pip uninstall {NAME}, or uv tool uninstall {NAME}, as you installed it"
