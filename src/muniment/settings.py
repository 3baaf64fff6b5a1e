"""The settings of a program, from flags, environment variables and `config.toml`.

A flag has precedence over a variable `MUNIMENT_*`, a variable over `config.toml`, and `config.toml` over the
default.

No setting is read from a workspace. Variables of other programs, such as `OPENAI_BASE_URL` or `HTTP_PROXY`,
are ignored: another program that sets them must not choose where facts and keys are sent. A home that another
user can write is rejected (ADR 0027). Reading settings creates no files or directories; only
`find_default_roots` creates directories. Settings do not contain the key of a model's server; `read_api_key`
reads it.

The `api_key_file` in `config.toml` is used only with the `base_url` in the same file.

If the model is `rules`, a flag for a language model is an error, because the user expects a language model.
The environment and `config.toml` may set options for a language model that only some runs select.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from muniment.agent.model_settings import (
    OnModelFailure,
    check_model_name,
    check_on_model_failure,
    check_protocol,
)
from muniment.errors import ConfigInvalid, InvalidScope, printable
from muniment.kernel.names import Scope
from muniment.names import HOME_VARIABLE, MAX_CONFIG_BYTES
from muniment.policy.files import reject_long_keys
from muniment.policy.ownership import check_owner_and_mode, create_private_directory, require_trusted

if TYPE_CHECKING:
    from muniment.policy.files import LoadedPolicy

# -- settings ----------------------------------------------------------------------------------------

KEY_VARIABLE: Final = "MUNIMENT_API_KEY"

STANDING_TOKENS: Final = 1_500
"""Default maximum tokens of the standing context."""

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
        "standing": "MUNIMENT_STANDING",
        "standing_tokens": "MUNIMENT_STANDING_TOKENS",
    }
)
"""The environment variable of each setting that the environment may set."""

_FILES: Final = frozenset({"api_key_file", "embeddings", "policy_signers"})
"""Settings that are paths."""

RULES: Final = "rules"
"""The name of the built-in model, which stores facts by rules, without a language model."""

_CONFIG_KEYS: Final = (*_VARIABLES, "roots", "symlinks")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a program.

    Attributes:
        home: the directory of all Muniment data: `$MUNIMENT_HOME`, by default `~/.muniment`.
        policy: name or path of the policy.
        roots: the configured directories by scope; other scopes have default directories.
        symlinks: the treatment of links inside the roots: `refuse` or `beneath`.
        model: `rules`, or the name of a language model as its server knows it.
        base_url: the address of the language model's server.
        api_key_file: the file with the server's key, absolute or relative to the current directory.
        key_in_variable: whether the key is the value of `MUNIMENT_API_KEY`; `api_key_file` is then ignored.
        protocol: the protocol of the server, one of `agent.model_settings.PROTOCOLS`.
        on_model_failure: `rules` or `fail`, see `JobContext`.
        embeddings: the directory of a static embedding model, see `recall.semantic_search`; None: recall
            compares only words.
        policy_signers: the file with the keys of users who may sign policies; None: policies need no
            signature (`policy.signatures`).
        standing: `on`: a session of a coding tool starts with the standing context (`recall.standing`);
            `off`: it does not.
        standing_tokens: maximum tokens of the standing context.
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
    standing: str = "on"
    standing_tokens: int = STANDING_TOKENS

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
        """Return the paths that a root must not be equal to, contain, or be inside of."""
        protected = (self.state, self.policies, self.home / "config.toml", self.home / "projects.json")
        return (*protected, *filter(None, (self.api_key_file, self.embeddings, self.policy_signers)))


def read_settings(environment: Mapping[str, str], **flags: Any) -> Settings:
    """Return the settings of a program.

    Args:
        environment: the environment variables, such as `os.environ`.
        flags: settings by name from a command line or caller; None or an empty value: not given.

    Raises:
        ConfigInvalid: one of these problems. Another user can write the home or its configuration. The home
            is unknown. `config.toml` cannot be read or is not TOML. It has an unknown key, a wrong type or a
            relative path. The protocol or the model's name is invalid. A flag is for a language model, but
            the model is `rules`.
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
    merged |= _parse_standing(merged)
    key_in_variable = bool(environment.get(KEY_VARIABLE)) and "api_key_file" not in given_flags
    settings = Settings(home.absolute(), key_in_variable=key_in_variable, **merged)
    _require_model(settings, given_flags)
    return settings


def _parse_standing(merged: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the standing context, parsed and checked."""
    standing, tokens = merged.get("standing", "on"), str(merged.get("standing_tokens", STANDING_TOKENS))
    if standing not in {"on", "off"}:
        raise ConfigInvalid(f"invalid standing {printable(standing)!r}; use on or off")
    if not re.fullmatch("[0-9]{1,5}", tokens):
        raise ConfigInvalid(
            f"invalid standing_tokens {printable(tokens)!r}; use a whole number from 0 to 99999"
        )
    return {"standing": standing, "standing_tokens": int(tokens)}


def _require_private_home(home: Path) -> None:
    """Raise `ConfigInvalid` if another user can write the configuration, policies or state of a home."""
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
    """Return the directory of each scope: the configured one, or the default one for `user` and `project`.

    Args:
        settings: the home and the configured directories.
        scopes: the scopes of the policy.
        project: the default directory of the scope `project`.
        create: create missing default directories; otherwise omit their scopes.
        is_project: False: do not create the directory of `project`, unless the policy has no scope `user`.

    Raises:
        InvalidScope: a directory is configured for a scope that is not one of `scopes`.
        ConfigInvalid: a scope has neither a configured nor a default directory.
        ManagedMemoryUnavailable: a default directory cannot be created.
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
    """Return the directories by scope, parsed from texts such as `user=/srv/memory`.

    Raises:
        ConfigInvalid: a text has another format, or a scope occurs twice.
    """
    roots: dict[str, Path] = {}
    for pair in pairs:
        scope, equals, directory = pair.partition("=")
        if not (scope and equals and directory):
            raise ConfigInvalid(f"invalid --root {pair!r}: use SCOPE=DIR")
        if scope in roots:
            raise ConfigInvalid(f"--root sets the scope {scope!r} twice; set it once")
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
                    f"--{flag.replace('_', '-')} is for a language model, but the model is {RULES}; "
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
    import tomllib

    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigInvalid(f"{path} is larger than {MAX_CONFIG_BYTES} bytes; shorten it")
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
            raise ConfigInvalid(f'{path}: roots must be a table such as {{ user = "/srv/memory" }}')
        case _, str() if key in _FILES:
            return _require_absolute(path, key, value)
        case _, str() if key in _CONFIG_KEYS:
            return value
        case "standing_tokens", int() if not isinstance(value, bool):
            return value
        case _ if key in _CONFIG_KEYS:
            kind = "whole number" if key == "standing_tokens" else "string"
            raise ConfigInvalid(f"{path}: {key} must be a {kind}")
        case _:
            known = f"{', '.join(_CONFIG_KEYS[:-1])} and {_CONFIG_KEYS[-1]}"
            raise ConfigInvalid(f"{path}: unknown key {key!r}; use one of {known}")


def _require_absolute(path: Path, what: str, configured: str) -> Path:
    """Return a path from `config.toml` if it is absolute; otherwise raise `ConfigInvalid`.

    Args:
        path: of `config.toml`, for the message.
        what: the name of the setting, for the message.
        configured: the path in `config.toml`; it may begin with `~`.
    """
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
        raise ConfigInvalid(f"{printable(path)!r} is not a valid path: it contains NUL or invalid characters")
    return expanded


# -- credentials ---------------------------------------------------------------------------------------
#
# The key of a model's server: how it is read and protected.
#
# - K1. The source of the key is the first of these that is given: `--api-key-file`, `MUNIMENT_API_KEY`,
#   `MUNIMENT_API_KEY_FILE`, `api_key_file` in `config.toml`. The variables of other programs, such as
#   `OPENAI_API_KEY`, are never read.
# - K2. Only `read_api_key` reads the key, and only the adapter of the model receives it. Settings contain the
#   location of the key, not its value. No error message quotes the key, even if a user passed a key instead
#   of a file name.
# - K3. No root may contain the key file, even if the key comes from the variable
#   (`Settings.protected_paths`).
# - K4. A key file that another user owns or can write is rejected: that user could insert the key of another
#   account, and read the requests there.
#
# Not guaranteed: that other users cannot read the key file. The key may stay in the memory of this process
# after use and, if it came from the variable, in `/proc/PID/environ`.
#
# Attacked in tests/surface/library/test_settings.py.

MAX_KEY_BYTES: Final = 4096
"""Maximum bytes of a key with surrounding white space. API keys have 20 to 200, signed tokens up to 2000."""

_KEY: Final = re.compile(r"[!-~]+")
"""The form of a key: printable ASCII without white space, which an HTTP header can contain unchanged."""


def read_api_key(settings: Settings, environment: Mapping[str, str]) -> str | None:
    """Return the key of the model's server, without surrounding white space; None if no key is configured.

    The key file may also be a FIFO, such as `<(pass show key)`; this function then waits for its end.

    Args:
        settings: as `read_settings` read them from the same environment.
        environment: the environment variables, such as `os.environ`.

    Raises:
        ConfigInvalid: the file cannot be read. Or the key is empty, is longer than `MAX_KEY_BYTES`, or
            contains white space or characters that are not printable ASCII.
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
            f"{source} contains no valid key: a key is one word of printable ASCII characters"
        )
    return key


def load_configured_policy(settings: Settings) -> LoadedPolicy:
    """Load the policy of `settings`; if signers are configured, check the signature of the policy.

    Policies that are part of Muniment need no signature.

    Raises:
        PolicyInvalid: the policy is invalid, or its signature is invalid or missing (codes E140 to E142).
    """
    from muniment.policy.shipped import load_policy_files

    loaded = load_policy_files(settings.policy, settings.policies)
    if settings.policy_signers is not None and not loaded.files[0].is_shipped:
        from muniment.policy.signatures import verify_policy

        verify_policy(loaded, settings.policy_signers)
    return loaded
