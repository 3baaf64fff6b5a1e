"""Run the daemon as a systemd service of this user: `muniment setup --daemon`, and its removal.

D1 Nothing is written or started without a confirmation, by a user at a terminal or by `--yes`. The preview
   shows the complete unit and the commands.
D2 A unit that setup did not write, or that was changed since, is neither replaced nor deleted.
D3 The removal stops and disables the service, and deletes the unit and the empty directories that setup
   created.
D4 The options of the unit do not weaken the confinement of workers. Omitted on purpose: `SystemCallFilter=`
   (groups of older versions lack calls that the fence needs), `MemoryDenyWriteExecute=` (workers apply it
   themselves), `ProtectSystem=`, `ProtectHome=`, `PrivateTmp=` and similar (for a user's service they require
   a user namespace, in which the checks of owners fail), `ProtectProc=` and `ProcSubset=` (the confirmation
   of the fence reads /proc).

Source: systemd.exec(5), systemd.service(5) and systemd.syntax(7) of systemd 252.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muniment.cli.terminal import color_text, confirm_change, print_line
from muniment.content.gates import clean_foreign_line
from muniment.errors import ConfigInvalid, printable
from muniment.files import open_descriptor
from muniment.integrations.coding_tools.files import (
    ChangedMeanwhile,
    CreatedDirectory,
    SavedFile,
    SettingsFile,
    create_directories,
    delete_saved_files,
    read_settings_file,
    remove_directories,
    write_settings_file,
)
from muniment.integrations.coding_tools.tools import NAME, Program
from muniment.names import HOME_VARIABLE

UNIT_NAME: Final = f"{NAME}.service"
SYSTEMCTL_SECONDS: Final = 60.0
"""Maximum seconds for one command of `systemctl`; stopping the daemon takes at most 30."""

_UNIT: Final = """\
# Written by `muniment setup --daemon`; to remove it: muniment setup --daemon --remove

[Unit]
Description=Muniment, long-term memory for AI agents
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
{environment}ExecStart={command}
Restart=on-failure
RestartSec=2

# SIGTERM is sent to the daemon only: it waits up to 10 s for the running task and stops its workers itself.
KillMode=mixed
TimeoutStopSec=30

UMask=0077
LimitCORE=0
# Each worker may use 128 MiB.
MemoryMax=1G
TasksMax=128

# Each of these filters system calls that the fence of the workers does not need.
NoNewPrivileges=yes
SystemCallArchitectures=native
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes

[Install]
WantedBy=default.target
"""

_WORKSPACE: Final = re.compile(r'"--workspace" "((?:\\.|[^"\\])*)"')


@dataclass(frozen=True, slots=True)
class ServiceResult:
    """The result of a setup or removal of the service.

    Attributes:
        status: `written`, `unchanged`, `removed`, or `not_written` if it was not confirmed.
        path: the path of the unit.
        unit: the content of the unit; empty after a removal.
    """

    status: str
    path: Path
    unit: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the result."""
        return {"status": self.status, "path": str(self.path), "unit": self.unit}


@dataclass(frozen=True, slots=True)
class DaemonService:
    """The service that runs the daemon of a home.

    Attributes:
        home: the home, `$MUNIMENT_HOME`.
    """

    home: Path

    @property
    def path(self) -> Path:
        """Return the path of the unit; it respects `XDG_CONFIG_HOME`."""
        configured = Path(os.environ.get("XDG_CONFIG_HOME") or "")
        default = Path(os.environ.get("HOME") or Path.home(), ".config")
        return (configured if configured.is_absolute() else default) / "systemd" / "user" / UNIT_NAME

    def install(
        self, program: Program, workspaces: Sequence[Path], *, yes: bool, quiet: bool
    ) -> ServiceResult:
        """Write the unit and start the service, after a confirmation.

        Args:
            program: the command that starts Muniment.
            workspaces: the directories to serve; empty: those of the existing unit, or the current directory.
            yes: whether the user has confirmed with `--yes`.
            quiet: whether to print no preview and to ask nothing.

        Raises:
            ConfigInvalid: systemd is not available, another daemon runs, the unit is not one that setup
                wrote, or it cannot be written or started.
        """
        file = self._read_unit()
        directories = [str(each.absolute()) for each in workspaces] or _read_workspaces(file)
        arguments = [*program.arguments, "serve"]
        for each in directories or [str(Path.cwd())]:
            arguments += ["--workspace", each]
        unit = _render_unit(arguments, program.home)
        _require_systemd(shlex.join(arguments))
        is_same = file.content == unit.encode()
        if is_same and _run_systemctl("is-enabled", UNIT_NAME).returncode == 0:
            return ServiceResult("unchanged", self.path, unit)
        if file.content is None and is_daemon_running(self.home / "state"):
            raise ConfigInvalid(f"a daemon already runs for {self.home}; stop it first, then run this again")
        commands = [("daemon-reload",), ("enable", "--now", UNIT_NAME)]
        if file.content is not None:
            commands.append(("restart", UNIT_NAME))
        if not quiet:
            _print_preview("new file" if file.content is None else "file", self.path, unit, commands)
        if not yes and (quiet or not confirm_change("write and start this service?")):
            return ServiceResult("not_written", self.path, unit)
        if not is_same:
            self._write(file, unit.encode())
        for command in commands:
            _require_success(command)
        return ServiceResult("written", self.path, unit)

    def remove(self, *, yes: bool, quiet: bool) -> ServiceResult:
        """Stop the service, and delete its unit, after a confirmation.

        Args:
            yes: whether the user has confirmed with `--yes`.
            quiet: whether to print no preview and to ask nothing.

        Raises:
            ConfigInvalid: as `install`.
        """
        file = self._read_unit()
        if file.content is None:
            delete_saved_files([self._get_saved_file()])
            return ServiceResult("unchanged", self.path)
        _require_systemd("")
        command = ("disable", "--now", UNIT_NAME)
        if not quiet:
            _print_preview("file to remove", self.path, "", [command])
        if not yes and (quiet or not confirm_change("stop and remove this service?")):
            return ServiceResult("not_written", self.path)
        _require_success(command)
        self._get_saved_file().begin_removal()
        self._write_unit(file, None)
        delete_saved_files([self._get_saved_file()])
        _require_success(("daemon-reload",))
        return ServiceResult("removed", self.path)

    def is_installed(self) -> bool:
        """Return whether a unit exists that setup wrote. Raises as `remove`."""
        return self._read_unit().content is not None

    def _read_unit(self) -> SettingsFile:
        """Read the unit; raise ConfigInvalid if it exists and is not exactly the one that setup wrote."""
        file = read_settings_file(self.path)
        if file.content is not None and not self._get_saved_file().read_original(file.content)[0]:
            raise ConfigInvalid(
                f"{file.label} was not written by setup, or was changed since; it stays unchanged; to "
                f"replace it: systemctl --user disable --now {UNIT_NAME}, delete it, then run this again"
            )
        return file

    def _get_saved_file(self) -> SavedFile:
        return SavedFile(self.home / "setup", "daemon", self.path)

    def _write(self, file: SettingsFile, content: bytes) -> None:
        created: list[CreatedDirectory] = list(self._get_saved_file().list_directories())
        try:
            create_directories(file, created)
            self._get_saved_file().save(file.path, None, content, created)
            self._write_unit(file, content)
        except BaseException:
            remove_directories(created)
            raise

    def _write_unit(self, file: SettingsFile, content: bytes | None) -> None:
        try:
            write_settings_file(file, content)
        except ChangedMeanwhile:
            raise ConfigInvalid(f"{file.label} was changed by another program; run this again") from None


def format_service_result(result: ServiceResult, *, is_removal: bool) -> Iterator[str]:
    """Yield the lines of the text output of a setup or removal of the service.

    Args:
        result: the result.
        is_removal: whether the service was to be removed.
    """
    if result.status == "unchanged":
        yield f"no service is set up at {result.path}" if is_removal else "the service is already set up"
    elif result.status == "removed":
        yield "the service is stopped and removed"
    elif result.status == "written":
        yield "the daemon runs as a service, and starts when you log in"
        yield f"  its state: systemctl --user status {NAME}; its log: journalctl --user -u {NAME}"
        yield "  to run it while you are logged out: loginctl enable-linger"
        yield f"  to undo it: {NAME} setup --daemon --remove"


def is_daemon_running(state: Path) -> bool:
    """Return whether a daemon runs: it then holds the lock in the state directory."""
    from muniment.store.state import try_lock

    with ExitStack() as resources:
        try:
            fd = resources.enter_context(open_descriptor(state / "daemon.lock"))
        except OSError:
            return False
        return not try_lock(fd, shared=True)


def _render_unit(arguments: Sequence[str], home: str | None) -> str:
    environment = f"Environment={_quote(f'{HOME_VARIABLE}={home}', is_command=False)}\n" if home else ""
    return _UNIT.format(environment=environment, command=" ".join(map(_quote, arguments)))


def _quote(word: str, *, is_command: bool = True) -> str:
    """Return a word in the syntax of a unit.

    Raises:
        ConfigInvalid: the word contains a control character or is not UTF-8.
    """
    if not word.isprintable():
        raise ConfigInvalid(f"{printable(word)!r} cannot be written into a unit; use another path")
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace("$", "$$") if is_command else text}"'


def _read_workspaces(file: SettingsFile) -> list[str]:
    """Return the workspaces in a unit that setup wrote."""
    found = _WORKSPACE.findall((file.content or b"").decode())
    return [re.sub(r"\\(.)", r"\1", each.replace("%%", "%").replace("$$", "$")) for each in found]


def _require_systemd(command: str) -> None:
    """Check that the systemd instance of this user accepts commands.

    Args:
        command: the command line that runs the daemon without systemd; empty: do not print it.

    Raises:
        ConfigInvalid: it does not.
    """
    by_hand = f"; to run the daemon by hand: {command}" if command else ""
    if shutil.which("systemctl") is None:
        raise ConfigInvalid(f"systemd is not available: systemctl not found{by_hand}")
    done = _run_systemctl("show", "--property=Version")
    if done.returncode != 0:
        raise ConfigInvalid(f"systemd is not available for this user: {_get_problem(done)}{by_hand}")


def _require_success(command: Sequence[str]) -> None:
    done = _run_systemctl(*command)
    if done.returncode != 0:
        line = shlex.join(("systemctl", "--user", *command))
        raise ConfigInvalid(f"{line} failed: {_get_problem(done)}; solve this, then run the command again")


def _get_problem(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return clean_foreign_line(lines[0])


def _run_systemctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", "--user", *arguments]
    try:
        return subprocess.run(  # noqa: S603  fixed arguments
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=SYSTEMCTL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigInvalid(f"{shlex.join(command)} failed: {error}") from None


def _print_preview(kind: str, path: Path, unit: str, commands: Sequence[Sequence[str]]) -> None:
    print_line(f"{kind} {printable(str(path))}")
    for line in unit.splitlines():
        print_line(color_text(clean_foreign_line(f"+{line}"), "green"))
    for command in commands:
        print_line(f"command: {shlex.join(('systemctl', '--user', *command))}")
