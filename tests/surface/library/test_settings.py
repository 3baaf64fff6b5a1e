"""Settings and the API key: precedence, validation, and errors that never contain the key.

Positions of workspaces and homes: `test_places_fakefs.py`.
"""

import os
import pwd
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from unittest.mock import Mock

import pytest

from muniment.agent.model_settings import MAX_MODEL_CHARS
from muniment.agent.openai import OpenAIModel
from muniment.errors import ConfigInvalid, InvalidScope, ManagedMemoryUnavailable
from muniment.settings import MAX_KEY_BYTES, find_default_roots, parse_roots, read_api_key, read_settings

SCOPES = ("user", "project")
SERVER = "http://127.0.0.1:1/v1"

OWN_NAMES = ("state", "policies", "config.toml", "projects.json")


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return home


configure = pytest.fixture(lambda home: (home / "config.toml").write_text)


def read(home, environment=None, **flags):
    return read_settings({"MUNIMENT_HOME": str(home), **(environment or {})}, **flags)


def read_error(home, environment=None, **flags):
    """Return the error message of invalid settings, which must not contain the canary."""
    with pytest.raises(ConfigInvalid) as caught:
        read(home, environment, **flags)
    assert not any(each in str(caught.value) for each in ("canary", "\x1b"))
    return str(caught.value)


# -- precedence


def test_defaults_apply_and_nothing_is_created(tmp_path, monkeypatch):
    settings, home = read_settings({"HOME": str(tmp_path)}), tmp_path / ".muniment"
    assert (settings.home, settings.policy, settings.on_model_failure) == (home, "strict", "rules")
    assert (dict(settings.roots), settings.symlinks, settings.policy_signers) == ({}, "refuse", None)
    assert settings.embeddings is None
    assert (settings.model, settings.base_url, settings.protocol) == ("rules", None, "auto")
    assert (settings.api_key_file, settings.key_in_variable) == (None, False)
    assert settings.protected_paths == tuple(home / name for name in OWN_NAMES)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    with pytest.raises(ConfigInvalid, match="MUNIMENT_HOME"):
        read_settings({})


PATHS = ("/flag", "/environment", "/file", None)
SOURCES = {
    "policy": ("flag", "environment", "file", "strict"),
    "model": ("flag", "environment", "file", "rules"),
    "base_url": ("flag", "environment", "file", None),
    "protocol": ("json", "text", "tools", "auto"),
    **dict.fromkeys(("api_key_file", "embeddings", "policy_signers"), PATHS),
    "on_model_failure": ("fail", "rules", "fail", "rules"),
}


def test_flag_overrides_environment_file_and_default(home, configure):
    for name, values in SOURCES.items():
        flag, environment, file, _ = values
        for winner, wanted in enumerate(values):
            # Flags about a model are rejected without a model.
            options = {} if name == "model" else {"model": "some-model"}
            for empty in ({}, {name: None}) if name == "model" else ({}, {name: ""}, {name: None}):
                arguments = {name: flag} if winner == 0 else empty
                variables = {f"MUNIMENT_{name.upper()}": environment if winner <= 1 else ""}
                configure(f'{name} = "{file}"\n' if winner <= 2 else "")
                found = getattr(read(home, variables, **options, **arguments), name)
                assert found == (Path(wanted) if values is PATHS and wanted else wanted), (name, winner)
    configure('symlinks = "beneath"\n[roots]\nuser = "/file/user"\nproject = "/file/project"\n')
    settings = read(home, roots={"user": Path("/flag/user")}, symlinks="refuse")
    assert settings.roots == {"user": Path("/flag/user"), "project": Path("/file/project")}
    assert settings.symlinks == "refuse"


def test_configured_key_is_used_only_for_its_server(home, configure):
    a, b, key = "https://a.example/v1", "https://b.example/v1", Path("/key-of-a")
    configure(f'model = "m"\nbase_url = "{a}"\napi_key_file = "{key}"\n')
    assert read(home).api_key_file == read(home, base_url=f"{a}/").api_key_file == key
    assert read(home, base_url=b).api_key_file is read(home, {"MUNIMENT_BASE_URL": b}).api_key_file is None
    assert read(home, base_url=b, api_key_file="/b").api_key_file == Path("/b")
    configure(f'model = "m"\napi_key_file = "{key}"\n')
    assert read(home, base_url=b).api_key_file == key


def test_reserved_paths_include_key_model_and_signers(home):
    own = tuple(home / name for name in OWN_NAMES)
    for environment in ({}, {"MUNIMENT_API_KEY": "k"}):  # For each source of the key.
        assert read(home, {"MUNIMENT_API_KEY_FILE": "/key", **environment}).protected_paths == (
            *own,
            Path("/key"),
        )
    assert read(home, {"MUNIMENT_POLICY_SIGNERS": "/etc/signers"}).protected_paths[-1] == Path("/etc/signers")
    assert read(home, {"MUNIMENT_EMBEDDINGS": "/model"}).protected_paths[-1] == Path("/model")


def test_tilde_is_expanded_in_configured_paths(home, configure, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    configure('api_key_file = "~/key"\n[roots]\nuser = "~/memory"\n')
    settings, other = read(home), read(home, {"MUNIMENT_API_KEY_FILE": "~/other"})
    assert (settings.api_key_file, other.api_key_file) == (Path("/home/me/key"), Path("/home/me/other"))
    assert settings.roots == {"user": Path("/home/me/memory")}
    assert read(home, model="m", api_key_file="here").api_key_file == Path("here")
    for bad in ("/a\0b", "/a\ud800b"):
        assert "is not a valid path" in read_error(home, {"MUNIMENT_API_KEY_FILE": bad})


# -- the environment


class Watched(Mapping):
    """An environment that records lookups and cannot be read as a whole."""

    def __init__(self, inner):
        self.inner, self.lookups = inner, set()

    def __getitem__(self, key):
        self.lookups.add(key)
        return self.inner[key]

    def __iter__(self):
        raise AssertionError("the whole environment was read")

    __len__ = None


KEYS = ("OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_ORG_ID", "ANTHROPIC_API_KEY", "SSL_CERT_FILE")
URLS = ("OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
FOREIGN_VARIABLES = dict.fromkeys(KEYS, "canary") | dict.fromkeys(URLS, "http://canary.invalid")


@pytest.mark.threat("T-RUN-05", control="own_variables")
@pytest.mark.parametrize("flags", [{}, {"model": "some-model", "base_url": SERVER}])
def test_variables_of_other_programs_are_not_read(home, flags):
    own = {"MUNIMENT_HOME": str(home), "MUNIMENT_PROTOCOL": "json"}
    environment = Watched(
        {**own, **FOREIGN_VARIABLES, **{name.lower(): FOREIGN_VARIABLES[name] for name in FOREIGN_VARIABLES}}
    )
    assert read_settings(environment, **flags) == read_settings(own, **flags)
    assert "MUNIMENT_PROTOCOL" in environment.lookups
    assert {name for name in environment.lookups if not name.startswith("MUNIMENT_")} <= {"HOME"}


# -- valid values


def test_model_name_must_be_printable(home, configure):
    for name in ("m", "org/model-7b:latest", "模型 é", "x" * MAX_MODEL_CHARS):
        assert read(home, model=name).model == read(home, {"MUNIMENT_MODEL": name}).model == name
    unseen = (*(f"canary{each}x" for each in "\n\u2003\u202e\u200b\u115f\udcff"), "canary\x1b[2J")
    for name in (" ", " m", "m ", "m\n", "x" * (MAX_MODEL_CHARS + 1), *unseen):
        for error in (read_error(home, model=name), read_error(home, {"MUNIMENT_MODEL": name})):
            assert "invalid model name: use 1 to 200 printable" in error, name
    configure("model = ''")
    assert "invalid model name" in read_error(home)


def test_adapter_accepts_the_five_protocols(home):
    for protocol in ("auto", "tools", "json", "text", "decide"):
        assert read(home, {"MUNIMENT_PROTOCOL": protocol}).protocol == protocol
        assert OpenAIModel("m", base_url=SERVER, protocol=protocol).protocol == protocol
    for bad in ("JSON", "json ", "xml", "\x1b[2J"):
        assert "use one of auto, tools, json, text or decide" in read_error(home, {"MUNIMENT_PROTOCOL": bad})
    assert "unknown on_model_failure 'stop'; use rules or fail" in read_error(home, on_model_failure="stop")


def test_model_flags_without_model_are_rejected(home, configure):
    for name, value in (("base_url", SERVER), ("api_key_file", "/key"), ("protocol", "json")):
        for environment, options in (({}, {}), ({"MUNIMENT_MODEL": "m"}, {"model": "rules"})):
            error = read_error(home, environment, **options, **{name: value})
            assert f"--{name.replace('_', '-')} is for a language model" in error
            assert "--model NAME" in error
        assert read(home, {"MUNIMENT_MODEL": "m"}, **{name: value}).model == "m"
    configure(f'base_url = "{SERVER}"\napi_key_file = "/key"\nprotocol = "json"\n')
    assert read(home, {"MUNIMENT_BASE_URL": SERVER}).model == "rules"


STRINGS = (
    *("policy = 1", "symlinks = ['refuse']", "model = 1", "base_url = {}", "api_key_file = true"),
    *("protocol = ['json']", "policy_signers = ['/signers']"),
)
RELATIVE = "api_key_file is relative"
FILES = {
    "rules = 'x'": "unknown key 'rules'; use one of policy, model, base_url, api_key_file, protocol, on_",
    "api_key = 'canary'": "unknown key 'api_key'",
    "Policy = 'own'": "unknown key 'Policy'",
    **{text: f"{text.partition(' ')[0]} must be a string" for text in STRINGS},
    **{f"standing_tokens = {each}": "standing_tokens must be a whole number" for each in ("1.5", "true")},
    "api_key_file = 'canary'": f"{RELATIVE}; use an absolute path",
    "api_key_file = ''": RELATIVE,
    'api_key_file = "/a\\u0000b"': "is not a valid path",
    "policy_signers = 'signers'": "policy_signers is relative",
    "embeddings = 'model'": "embeddings is relative",
    **dict.fromkeys(("roots = 'x'", "[roots]\nuser = 1"), "roots must be a table"),
    "[roots]\nuser = 'memory'": "the root of 'user' is relative",
    "[roots]\nuser = '~nobody-of-this-name/x'": "no home directory",
}


def test_invalid_config_file_raises_with_reason(home, configure):
    for text, expected in FILES.items():
        configure(text)
        error = read_error(home)
        assert expected in error
        assert "config.toml" in error or expected in {"no home directory", "is not a valid path"}


def test_broken_config_path_is_not_treated_as_missing(home, tmp_path):
    """The file may require a stricter policy than the default."""
    (home / "config.toml").symlink_to(home / "elsewhere.toml")
    assert "broken link" in read_error(home)
    (file := tmp_path / "file").write_text("no directory")
    assert ("cannot be read: Not a directory" in read_error(file), file.read_text()) == (True, "no directory")


# -- roots


def test_default_roots_are_private_and_replaced_by_bound_roots(home, tmp_path):
    settings = read(home, roots={"user": tmp_path / "mine"})
    assert find_default_roots(settings, ("user",), tmp_path, create=True) == {"user": tmp_path / "mine"}
    assert ((tmp_path / "mine").exists(), (home / "user").exists()) == (False, False)
    project = home / "projects" / "work" / "memory"
    roots = find_default_roots(read(home), SCOPES, project, create=True)
    assert roots == {"user": home / "user", "project": project}
    assert [path.stat().st_mode & 0o777 for path in roots.values()] == [0o700] * 2


def test_mismatched_scopes_roots_and_home_are_rejected(home, tmp_path):
    with pytest.raises(InvalidScope, match="unknown scope 'team'"):
        find_default_roots(read(home, roots={"team": tmp_path}), SCOPES, tmp_path, create=True)
    with pytest.raises(ConfigInvalid, match="--root team=DIR"):
        find_default_roots(read(home), ("user", "team"), tmp_path, create=True)
    (home / "user").rmdir()
    (home / "user").write_text("")
    with pytest.raises(ManagedMemoryUnavailable, match="not a directory"):
        find_default_roots(read(home), SCOPES, tmp_path, create=True)


def test_roots_are_parsed_from_pairs():
    pairs = ["user=/a = b, x", "project=/c"]
    assert (parse_roots([]), parse_roots(pairs)) == ({}, {"user": Path("/a = b, x"), "project": Path("/c")})
    for bad in ("user", "user=", "=/a", ""):
        with pytest.raises(ConfigInvalid, match="SCOPE=DIR"):
            parse_roots([bad])
    with pytest.raises(ConfigInvalid, match="twice"):
        parse_roots(["user=/a", "user=/b"])


# -- the key

CANARY = "sk-canary-7f3a"


@pytest.fixture
def read_key(home):
    """Return a function that reads the API key for an environment and flags."""

    def read_key(environment=None, **flags):
        whole = {"MUNIMENT_HOME": str(home), **(environment or {})}
        return read_api_key(read_settings(whole, model="some-model", **flags), MappingProxyType(whole))

    return read_key


@pytest.fixture
def read_key_error(read_key):
    """Return a function that returns the error of an invalid key; no part of the key is in its traceback."""

    def read_key_error(environment=None, *, check_causes=True, **flags):
        with pytest.raises(ConfigInvalid) as caught:
            read_key(environment, **flags)
        chain = [caught.value]
        while check_causes and (chain[-1].__cause__ or chain[-1].__context__):
            chain.append(chain[-1].__cause__ or chain[-1].__context__)
        assert "canary" not in "".join([*map(repr, chain), *traceback.format_exception(caught.value)])
        return str(caught.value)

    return read_key_error


def write_key_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_key_flag_overrides_variable_and_configured_file(home, tmp_path, read_key):
    flag, named, configured = (
        write_key_file(tmp_path / name, name) for name in ("flag", "named", "configured")
    )
    assert read_key() is None
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "API_KEY", "muniment_api_key"):
        assert read_key({name: CANARY}) is None  # These belong to other programs.
    (home / "config.toml").write_text(f'api_key_file = "{configured}"\n')
    assert read_key() == read_key({"MUNIMENT_API_KEY": "", "MUNIMENT_API_KEY_FILE": ""}) == "configured"
    environment = {"MUNIMENT_API_KEY_FILE": named}
    assert (
        read_key(environment) == read_key(environment | {"MUNIMENT_API_KEY": ""}, api_key_file="") == "named"
    )
    environment["MUNIMENT_API_KEY"] = "variable"
    assert read_key(environment) == read_key({"MUNIMENT_API_KEY": "variable"}) == "variable"
    assert (
        read_key(environment, api_key_file=flag) == read_key(environment, api_key_file=Path(flag)) == "flag"
    )
    settings = read_settings(environment | {"MUNIMENT_API_KEY": CANARY, "HOME": str(home)})
    assert (CANARY in repr(settings), named in repr(settings)) == (False, True)


def test_white_space_around_key_is_stripped(tmp_path, read_key):
    for text in ("k", f"  {CANARY}\r\n", f"\n\t{CANARY}", "!~" * 2000, " " * 4000 + CANARY):
        assert read_key({"MUNIMENT_API_KEY": text}) == text.strip()
        assert read_key(api_key_file=write_key_file(tmp_path / "key", text)) == text.strip()


INVALID_KEYS = {
    b" \n": "is empty",
    **{
        f"{CANARY}{text}".encode(): "contains no valid key" for text in (" x", "\x00", "\x7f", "\x1b[2J", "é")
    },
    **dict.fromkeys((f"KEY=1\n{CANARY}".encode(), f"\ufeff{CANARY}".encode()), "contains no valid key"),
    **dict.fromkeys((CANARY.encode() + b"\xff", CANARY.encode("utf-16")), "contains no valid key"),
    **{f"{CANARY}{each * MAX_KEY_BYTES}".encode(): f"is longer than {MAX_KEY_BYTES} bytes" for each in "x "},
}


@pytest.mark.threat("T-LEAK-09", control="quiet_key")
def test_invalid_key_raises_without_showing_it(tmp_path, read_key_error):
    for content, expected in {b"": "is empty", **INVALID_KEYS}.items():
        path = write_key_file(tmp_path / "file", content)
        assert f"the key file {path} {expected}" in read_key_error(api_key_file=path)
        if content:
            error = read_key_error({"MUNIMENT_API_KEY": os.fsdecode(content)})
            assert error.startswith(f"MUNIMENT_API_KEY {expected}")
    assert (
        read_key_error(api_key_file=str(tmp_path))
        == f"the key file {tmp_path} cannot be read: Is a directory"
    )
    assert "longer than" in read_key_error(api_key_file="/dev/zero")


def test_key_used_as_file_name_is_not_shown(tmp_path, read_key_error, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key in (CANARY, f"{CANARY}/x", f"{CANARY}{'x' * 400}"):
        for arguments in ({"api_key_file": key}, {"environment": {"MUNIMENT_API_KEY_FILE": key}}):
            assert "need the path of a file that contains the key" in read_key_error(
                check_causes=False, **arguments
            )


def test_key_is_read_in_pieces_from_descriptor(read_key):
    reading, writing = os.pipe()

    def write():
        for part in (CANARY[:5], f"{CANARY[5:]}\n"):
            os.write(writing, part.encode())
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_key(api_key_file=f"/dev/fd/{reading}") == CANARY
    writer.join()
    os.close(reading)
