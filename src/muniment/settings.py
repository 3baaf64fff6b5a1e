"""Paths and configuration: flag > `MUNIMENT_*` > `config.toml` > default.

No setting is ever read from a workspace, and no variable of another program is used, such as
`OPENAI_BASE_URL` or `HTTP_PROXY`: a program that can set these must not choose where facts and keys are sent.
A home that another user can write is rejected (ADR 0027). Reading settings creates nothing: only
`find_default_roots` creates directories. The key of a model's server is not a setting; `read_api_key` reads
it.

The `api_key_file` of `config.toml` belongs to the `base_url` in the same file, and is not used with another.

A flag for a language model is an error if the model is `rules`, because the user expects a language model.
The environment and `config.toml` may set these options anyway, for runs that select a model.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from muniment.agent.model import OnModelFailure, check_model_name, check_on_model_failure, check_protocol
from muniment.errors import ConfigInvalid, InvalidScope, printable
from muniment.kernel.names import Scope
from muniment.names import HOME_VARIABLE, MAX_CONFIG_BYTES
from muniment.policy.family import reject_long_keys
from muniment.policy.ownership import check_owner_and_mode, create_private_directory, require_trusted

if TYPE_CHECKING:
    from muniment.policy.load import LoadedPolicy

# -- settings ----------------------------------------------------------------------------------------

KEY_VARIABLE: Final = "MUNIMENT_API_KEY"

_VARIABLES: Final = MappingProxyType(
    {
        "policy": "MUNIMENT_POLICY",
        "model": "MUNIMENT_MODEL",
        "base_url": "MUNIMENT_BASE_URL",
        "api_key_file": "MUNIMENT_API_KEY_FILE",
        "protocol": "MUNIMENT_PROTOCOL",
        "on_model_failure": "MUNIMENT_ON_MODEL_FAILURE",
        "embeddings": "MUNIMENT_EMBEDDINGS",
        "policy_signers": "MUNIMENT_POLICY_SIGNERS",
    }
)
"""The settings that the environment may set."""

_FILES: Final = frozenset({"api_key_file", "embeddings", "policy_signers"})
"""Settings that are paths."""

RULES: Final = "rules"
"""The embedded model: the rule writer."""

_CONFIG_KEYS: Final = (*_VARIABLES, "roots", "symlinks")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a program.

    Attributes:
        home: `$MUNIMENT_HOME`, default `~/.muniment`.
        policy: name or path of the policy.
        roots: bound roots by scope; other scopes have default roots.
        symlinks: the treatment of links under the roots: `refuse` or `beneath`.
        model: `rules`, or the server's name of a language model.
        base_url: the address of that server.
        api_key_file: the file with the server's key, absolute or relative to the current directory.
        key_in_variable: the key is the value of `MUNIMENT_API_KEY`; `api_key_file` is ignored.
        protocol: one of `agent.model.PROTOCOLS`.
        on_model_failure: `rules` or `fail`, see `JobContext`.
        embeddings: the directory of a static embedding model, see `recall.semantic_search`; None: only words
            are matched.
        policy_signers: the file of allowed policy signers; None: no signature is needed
            (`policy.signatures`).
    """

    home: Path
    policy: str = "strict"
    roots: Mapping[str, Path] = field(default_factory=dict)
    symlinks: str = "refuse"
    model: str = RULES
    base_url: str | None = None
    api_key_file: Path | None = None
    key_in_variable: bool = False
    protocol: str = "auto"
    on_model_failure: OnModelFailure = "rules"
    embeddings: Path | None = None
    policy_signers: Path | None = None

    @property
    def state(self) -> Path:
        """Return the state directory."""
        return self.home / "state"

    @property
    def policies(self) -> Path:
        """Return the directory of the operator's policies."""
        return self.home / "policies"

    @property
    def protected_paths(self) -> tuple[Path, ...]:
        """Return the paths that no root may be, contain or be inside of."""
        protected = (self.state, self.policies, self.home / "config.toml", self.home / "projects.json")
        return (*protected, *filter(None, (self.api_key_file, self.embeddings, self.policy_signers)))


def read_settings(environment: Mapping[str, str], **flags: Any) -> Settings:
    """Return the settings of a program.

    Args:
        environment: such as `os.environ`.
        flags: given by a command line or caller; None and empty mean: not given.

    Raises:
        ConfigInvalid: another user can write the home or its configuration. Or `config.toml` cannot be read,
            is not TOML, or has an unknown key, a wrong type or a relative path. Or the home is unknown. Or
            the protocol or the model's name is invalid. Or a flag is for a language model and the model is
            `rules`.
    """
    home_variable = environment.get(HOME_VARIABLE)
    home = (
        _expand_path(home_variable)
        if home_variable
        else _expand_path(environment.get("HOME") or "~") / ".muniment"
    )
    given_flags = {name: value for name, value in flags.items() if value}
    _require_private_home(home)
    configured = _read_config(home / "config.toml")
    found = {
        name: environment[variable] for name, variable in _VARIABLES.items() if environment.get(variable)
    }
    merged: dict[str, Any] = {**configured, **found, **given_flags}
    is_another = "base_url" in configured and merged["base_url"].rstrip("/") != configured["base_url"].rstrip(
        "/"
    )
    if is_another and "api_key_file" not in {**found, **given_flags}:
        merged.pop("api_key_file", None)  # It is the key of the server in the same file.
    merged["roots"] = {**configured.get("roots", {}), **given_flags.get("roots", {})}
    for name in _FILES & merged.keys():
        merged[name] = _expand_path(os.fspath(merged[name]))
    key_in_variable = bool(environment.get(KEY_VARIABLE)) and "api_key_file" not in given_flags
    settings = Settings(home.absolute(), key_in_variable=key_in_variable, **merged)
    _require_model(settings, given_flags)
    return settings


def _require_private_home(home: Path) -> None:
    """Check that no other user can have written the configuration, policies or state of a home."""
    for each in (home, home / "config.toml", home / "state"):
        require_trusted(each)
    require_trusted(home / "policies", inside=True)


def find_default_roots(
    settings: Settings,
    scopes: tuple[Scope, ...],
    project: Path,
    *,
    create: bool,
    is_project: bool = True,
) -> dict[Scope, Path]:
    """Return the roots for `scopes`: bound ones, and default ones for `user` and `project`.

    Args:
        settings: with the home and the bound roots.
        scopes: those of the policy.
        project: the directory of the project's memory.
        create: create missing default roots; otherwise omit them.
        is_project: False: do not create that of `project`, unless the scope `user` is missing.

    Raises:
        InvalidScope: a root is bound to a scope that is not one of `scopes`.
        ConfigInvalid: a scope has neither a bound nor a default root.
        ManagedMemoryUnavailable: a default root cannot be created.
    """
    unknown = sorted(set(settings.roots) - set(scopes))
    if unknown:
        raise InvalidScope(f"unknown scope {unknown[0]!r}; use one of {', '.join(scopes)}")
    default_paths = {"user": settings.home / "user", "project": project}
    roots: dict[Scope, Path] = {}
    for scope in scopes:
        if scope in settings.roots:
            roots[scope] = settings.roots[scope]
        elif scope in default_paths:
            if create and (is_project or scope != "project" or "user" not in scopes):
                create_private_directory(default_paths[scope])
            if default_paths[scope].exists():
                roots[scope] = default_paths[scope]
        else:
            raise ConfigInvalid(f"scope {scope!r} has no directory; bind one with --root {scope}=DIR")
    return roots


def parse_roots(pairs: Iterable[str]) -> dict[str, Path]:
    """Parse roots from `scope=DIR` texts.

    Raises:
        ConfigInvalid: a text has another format, or a scope occurs twice.
    """
    roots: dict[str, Path] = {}
    for pair in pairs:
        scope, equals, directory = pair.partition("=")
        if not (scope and equals and directory):
            raise ConfigInvalid(f"invalid --root {pair!r}: use SCOPE=DIR")
        if scope in roots:
            raise ConfigInvalid(f"--root sets the scope {scope!r} twice")
        roots[scope] = _expand_path(directory)
    return roots


def _require_model(settings: Settings, given_flags: Mapping[str, Any]) -> None:
    name = check_model_name(settings.model)
    check_protocol(settings.protocol)
    check_on_model_failure(settings.on_model_failure)
    if name == RULES:
        for flag in ("base_url", "api_key_file", "protocol"):
            if flag in given_flags:
                raise ConfigInvalid(
                    f"--{flag.replace('_', '-')} is for a language model, and the model is {RULES}; "
                    "choose one with --model NAME"
                )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigInvalid(f"{path} is a broken link; repair or remove it") from None
        return {}
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror}") from None
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigInvalid(f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        reject_long_keys(text.decode())
        data = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:  # Errors of decoding, of TOML, and of too long numbers.
        raise ConfigInvalid(f"{path} is not valid TOML: {error}") from None
    return {key: _validate_value(path, key, value) for key, value in data.items()}


def _validate_value(path: Path, key: str, value: Any) -> Any:
    match key, value:
        case "roots", dict() if all(isinstance(each, str) for each in value.values()):
            return {
                scope: _require_absolute(path, f"the root of {scope!r}", each)
                for scope, each in value.items()
            }
        case "roots", _:
            raise ConfigInvalid(f"{path}: roots must be a table of scope = directory")
        case _, str() if key in _FILES:
            return _require_absolute(path, key, value)
        case _, str() if key in _CONFIG_KEYS:
            return value
        case _ if key in _CONFIG_KEYS:
            raise ConfigInvalid(f"{path}: {key} must be a string")
        case _:
            known = f"{', '.join(_CONFIG_KEYS[:-1])} and {_CONFIG_KEYS[-1]}"
            raise ConfigInvalid(f"{path}: unknown key {key!r}; use one of {known}")


def _require_absolute(path: Path, what: str, configured: str) -> Path:
    """Return an absolute path of `config.toml`, which is independent of the current directory."""
    found = _expand_path(configured)
    if not found.is_absolute():
        raise ConfigInvalid(f"{path}: {what} is relative; use an absolute path")
    return found


def _expand_path(path: str) -> Path:
    try:
        expanded = Path(path).expanduser()
        is_path = b"\0" not in os.fsencode(expanded)
    except RuntimeError:
        raise ConfigInvalid(f"no home directory found for {path!r}; set {HOME_VARIABLE}") from None
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise ConfigInvalid(f"{printable(path)!r} is not a valid path")
    return expanded


# -- credentials ---------------------------------------------------------------------------------------
#
# The key of a model's server: how it is read and protected.
#
# - K1. The first of these that is given: `--api-key-file`, `MUNIMENT_API_KEY`, `MUNIMENT_API_KEY_FILE`,
#   `api_key_file` in `config.toml`. The variables of other programs, such as `OPENAI_API_KEY`, are never
#   read.
# - K2. It is passed only from `read_api_key` to the adapter of the model. Settings contain its location, not
#   its value. No error here quotes it, also if a user gave a key instead of a file name.
# - K3. No bound root contains the file of the settings, also if the variable is used
# (`Settings.protected_paths`).
# - K4. A file that another user owns or can write is rejected: that user could read the traffic at the
#   server.
#
# Not guaranteed: that others cannot read the file; nor that the key is removed from the memory of this
# process after use, or from `/proc/PID/environ` if it came as a variable.
#
# Attacked in tests/surface/library/test_settings.py.

MAX_KEY_BYTES: Final = 4096
"""Bytes of a key with the surrounding white space. API keys have 20 to 200, signed tokens seldom over 2000.
"""

_KEY: Final = re.compile(r"[!-~]+")
"""The form that an HTTP header can contain unchanged: printable ASCII without white space."""


def read_api_key(settings: Settings, environment: Mapping[str, str]) -> str | None:
    """Return the key that `settings` refer to, without surrounding white space; None if they refer to none.

    The file may be anything that ends: also a FIFO, such as `<(pass show key)`, which is waited for.

    Args:
        settings: as `read_settings` read them from the same environment.
        environment: such as `os.environ`; not changed.

    Raises:
        ConfigInvalid: the file cannot be read, or the key is empty, longer than `MAX_KEY_BYTES`, or not one
            word of printable ASCII.
    """
    if settings.key_in_variable:
        return _validate_key(environment[KEY_VARIABLE], KEY_VARIABLE)
    path = settings.api_key_file
    return None if path is None else _validate_key(_read_key_file(path), f"the key file {path}")


def _read_key_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISCHR(status.st_mode):  # A terminal and /dev/null belong to no single user.
                check_owner_and_mode(path, status)
            data = file.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        if not os.path.lexists(path):
            # The given name may be the key itself.
            raise ConfigInvalid(
                f"the key file cannot be read: {error.strerror}; --api-key-file, MUNIMENT_API_KEY_FILE and "
                "api_key_file need the path of a file that contains the key"
            ) from None
        raise ConfigInvalid(f"the key file {path} cannot be read: {error.strerror}") from None
    # Latin-1 decodes every byte: a decoding error would contain the key in its context.
    return data.decode("latin-1")


def _validate_key(text: str, source: str) -> str:
    if len(text) > MAX_KEY_BYTES:
        raise ConfigInvalid(f"{source} is longer than {MAX_KEY_BYTES} bytes; it must contain only the key")
    key = text.strip()
    if not key:
        raise ConfigInvalid(f"{source} is empty; it must contain the key")
    if _KEY.fullmatch(key) is None:
        raise ConfigInvalid(
            f"{source} contains no valid key: expected only printable ASCII without white space"
        )
    return key


def load_configured_policy(settings: Settings) -> LoadedPolicy:
    """Return the policy of `settings`, with its signature checked if signers are configured.

    Raises:
        PolicyInvalid: it does not load, or E140 to E142.
    """
    from muniment.policy.load import load_files
    from muniment.policy.signatures import verify_policy

    loaded = load_files(settings.policy, policies_dir=settings.policies)
    if settings.policy_signers is not None and not loaded.files[0].is_shipped:
        verify_policy(loaded, settings.policy_signers)
    return loaded
