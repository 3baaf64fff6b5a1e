"""Where things live and what is configured: flag > `MUNIMENT_*` > `config.toml` > default.

Nothing is ever read from a workspace; the only things taken from it are its real path and the name
of its directory. Reading settings creates nothing: `default_roots` is what makes directories.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muniment.confine.binding import create_private_directory
from muniment.errors import ConfigInvalid, InvalidScope
from muniment.names import Scope

HOME_VARIABLE: Final = "MUNIMENT_HOME"
POLICY_VARIABLE: Final = "MUNIMENT_POLICY"

MAX_CONFIG_BYTES: Final = 65_536
"""Bytes of `config.toml`; it has a handful of lines."""

_KEY_CHARS: Final = 32
"""Hexadecimal digits of a workspace key: 128 bits, so that no two workspaces share one."""

_SLUG_CHARS: Final = 40
"""Characters of a workspace's name in its directory, for people; the key tells them apart."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a program runs with.

    Attributes:
        home: `$MUNIMENT_HOME`, default `~/.muniment`.
        policy: name or path of the policy.
        roots: bound roots by scope; scopes not named get their default.
        symlinks: how links inside roots are treated.
    """

    home: Path
    policy: str = "strict"
    roots: Mapping[str, Path] = field(default_factory=dict)
    symlinks: str = "refuse"

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.home / "state"

    @property
    def policies(self) -> Path:
        """The operator's own policies."""
        return self.home / "policies"

    @property
    def apart(self) -> tuple[Path, ...]:
        """What no root may be, lie in or lie around."""
        return (self.state, self.policies, self.home / "config.toml")


def read_settings(environment: Mapping[str, str], **flags: Any) -> Settings:
    """The settings of a program.

    Args:
        environment: such as `os.environ`.
        flags: what a command line or caller asked for; None and empty mean: not asked.

    Raises:
        ConfigInvalid: `config.toml` cannot be read, is no TOML, or has an unknown key, a wrong type or a
            relative root; or nobody says where home is.
    """
    named = environment.get(HOME_VARIABLE)
    home = _expanded(named) if named else _expanded(environment.get("HOME") or "~") / ".muniment"
    settings: dict[str, Any] = {"home": home.absolute(), **_read_config(home / "config.toml")}
    if environment.get(POLICY_VARIABLE):
        settings["policy"] = environment[POLICY_VARIABLE]
    asked = {name: value for name, value in flags.items() if value}
    asked["roots"] = {**settings.get("roots", {}), **asked.get("roots", {})}
    return Settings(**{**settings, **asked})


def find_workspace(directory: Path) -> Path:
    """The workspace around `directory`: its nearest ancestor that holds `.git`, else itself.

    Raises:
        ConfigInvalid: there is no such directory.
    """
    try:
        start = directory.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise ConfigInvalid(f"the workspace {directory} does not exist") from None
    if not start.is_dir():
        raise ConfigInvalid(f"the workspace {directory} is no directory")
    return next((each for each in (start, *start.parents) if os.path.lexists(each / ".git")), start)


def workspace_key(workspace: Path) -> str:
    """The directory name of a workspace's memory: a readable slug and 128 bits of its real path."""
    slug = re.sub(r"[^a-z0-9]+", "-", workspace.name.casefold()).strip("-")[:_SLUG_CHARS] or "workspace"
    return f"{slug}-{hashlib.sha256(os.fsencode(workspace)).hexdigest()[:_KEY_CHARS]}"


def default_roots(
    settings: Settings, scopes: tuple[Scope, ...], workspace: Path, *, create: bool
) -> dict[Scope, Path]:
    """Roots for `scopes`: those that are bound, and ours for `user` and `project`.

    Args:
        settings: where home is, and what is bound.
        scopes: those of the policy.
        workspace: as `find_workspace` found it.
        create: make ours where they are missing; else leave those out.

    Raises:
        InvalidScope: a root is bound to a scope that is not one of `scopes`.
        ConfigInvalid: a scope has neither a bound nor a default root.
        ManagedMemoryUnavailable: ours cannot be created.
    """
    unknown = sorted(set(settings.roots) - set(scopes))
    if unknown:
        raise InvalidScope(f"the policy declares no scope {unknown[0]!r}; it has {', '.join(scopes)}")
    ours = {
        "user": settings.home / "user",
        "project": settings.home / "projects" / workspace_key(workspace) / "memory",
    }
    roots: dict[Scope, Path] = {}
    for scope in scopes:
        if scope in settings.roots:
            roots[scope] = settings.roots[scope]
        elif scope in ours:
            if create:
                create_private_directory(ours[scope])
            if ours[scope].exists():
                roots[scope] = ours[scope]
        else:
            raise ConfigInvalid(f"scope {scope!r} has no directory; bind one with --root {scope}=DIR")
    return roots


def parse_roots(pairs: list[str]) -> dict[str, Path]:
    """Roots from `scope=DIR` texts.

    Raises:
        ConfigInvalid: a text has another shape, or names a scope twice.
    """
    roots: dict[str, Path] = {}
    for pair in pairs:
        scope, equals, directory = pair.partition("=")
        if not (scope and equals and directory):
            raise ConfigInvalid(f"--root takes scope=DIR, not {pair!r}")
        if scope in roots:
            raise ConfigInvalid(f"--root names the scope {scope!r} twice")
        roots[scope] = _expanded(directory)
    return roots


def _read_config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigInvalid(f"{path} is no path") from None
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigInvalid(f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        data = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} is not valid TOML: {error}") from None
    return {key: _checked(path, key, value) for key, value in data.items()}


def _checked(path: Path, key: str, value: Any) -> Any:
    match key, value:
        case "policy" | "symlinks", str():
            return value
        case "roots", dict() if all(isinstance(each, str) for each in value.values()):
            return {scope: _absolute(path, scope, each) for scope, each in value.items()}
        case "policy" | "symlinks" | "roots", _:
            kind = "a table of scope = directory" if key == "roots" else "a string"
            raise ConfigInvalid(f"{path}: {key} must be {kind}")
        case _:
            raise ConfigInvalid(f"{path}: unknown key {key!r}; there are policy, roots and symlinks")


def _absolute(path: Path, scope: str, directory: str) -> Path:
    """A root of `config.toml`: the same directory from wherever a program is started."""
    root = _expanded(directory)
    if not root.is_absolute():
        raise ConfigInvalid(f"{path}: the root of {scope!r} is relative; give an absolute path")
    return root


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigInvalid(f"there is no home directory for {path!r}; set {HOME_VARIABLE}") from None
