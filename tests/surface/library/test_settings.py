"""Settings and the key: who wins, what they may say, and that nothing that is told holds the key.

Where workspaces and homes lie is shown in `test_places_fakefs.py`.
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

from muniment.agent.model import MAX_MODEL_CHARS
from muniment.agent.openai import OpenAIModel
from muniment.errors import ConfigInvalid, InvalidScope, ManagedMemoryUnavailable
from muniment.settings import MAX_KEY_BYTES, default_roots, parse_roots, read_api_key, read_settings

SCOPES = ("user", "project")
SERVER = "http://127.0.0.1:1/v1"

OURS = ("state", "policies", "config.toml", "projects.json")


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return home


configure = pytest.fixture(lambda home: (home / "config.toml").write_text)


def read(home, environment=None, **flags):
    return read_settings({"MUNIMENT_HOME": str(home), **(environment or {})}, **flags)


def refused(home, environment=None, **flags):
    """What is told of settings that are none; a canary in them is not."""
    with pytest.raises(ConfigInvalid) as caught:
        read(home, environment, **flags)
    assert not any(each in str(caught.value) for each in ("canary", "\x1b"))
    return str(caught.value)


# -- who wins


def test_without_anything_there_are_defaults_and_nothing_is_created(tmp_path, monkeypatch):
    settings, home = read_settings({"HOME": str(tmp_path)}), tmp_path / ".muniment"
    assert (settings.home, settings.policy, settings.on_model_failure) == (home, "strict", "rules")
    assert (dict(settings.roots), settings.symlinks, settings.policy_signers) == ({}, "refuse", None)
    assert settings.embeddings is None
    assert (settings.model, settings.base_url, settings.protocol) == ("rules", None, "auto")
    assert (settings.api_key_file, settings.key_in_variable) == (None, False)
    assert settings.apart == tuple(home / name for name in OURS)
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


def test_each_of_these_is_asked_of_the_flag_first_and_of_the_default_last(home, configure):
    for name, values in SOURCES.items():
        flag, environment, file, _ = values
        for winner, wanted in enumerate(values):
            # Without a model, flags about one would be refused.
            terms = {} if name == "model" else {"model": "some-model"}
            for empty in ({}, {name: None}) if name == "model" else ({}, {name: ""}, {name: None}):
                given = {name: flag} if winner == 0 else empty
                variables = {f"MUNIMENT_{name.upper()}": environment if winner <= 1 else ""}
                configure(f'{name} = "{file}"\n' if winner <= 2 else "")
                found = getattr(read(home, variables, **terms, **given), name)
                assert found == (Path(wanted) if values is PATHS and wanted else wanted), (name, winner)
    configure('symlinks = "beneath"\n[roots]\nuser = "/file/user"\nproject = "/file/project"\n')
    settings = read(home, roots={"user": Path("/flag/user")}, symlinks="refuse")
    assert settings.roots == {"user": Path("/flag/user"), "project": Path("/file/project")}
    assert settings.symlinks == "refuse"


def test_the_key_of_the_server_in_the_file_is_for_no_other(home, configure):
    a, b, key = "https://a.example/v1", "https://b.example/v1", Path("/key-of-a")
    configure(f'model = "m"\nbase_url = "{a}"\napi_key_file = "{key}"\n')
    assert read(home).api_key_file == read(home, base_url=f"{a}/").api_key_file == key
    assert read(home, base_url=b).api_key_file is read(home, {"MUNIMENT_BASE_URL": b}).api_key_file is None
    assert read(home, base_url=b, api_key_file="/b").api_key_file == Path("/b")
    configure(f'model = "m"\napi_key_file = "{key}"\n')
    assert read(home, base_url=b).api_key_file == key


def test_a_root_has_to_lie_apart_from_the_key_file_the_model_and_the_file_of_those_who_sign(home):
    own = tuple(home / name for name in OURS)
    for environment in ({}, {"MUNIMENT_API_KEY": "k"}):  # Whatever the key is taken from.
        assert read(home, {"MUNIMENT_API_KEY_FILE": "/key", **environment}).apart == (*own, Path("/key"))
    assert read(home, {"MUNIMENT_POLICY_SIGNERS": "/etc/signers"}).apart[-1] == Path("/etc/signers")
    assert read(home, {"MUNIMENT_EMBEDDINGS": "/model"}).apart[-1] == Path("/model")


def test_a_tilde_is_home_and_a_path_of_the_file_is_not_taken_from_here(home, configure, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    configure('api_key_file = "~/key"\n[roots]\nuser = "~/memory"\n')
    settings, other = read(home), read(home, {"MUNIMENT_API_KEY_FILE": "~/other"})
    assert (settings.api_key_file, other.api_key_file) == (Path("/home/me/key"), Path("/home/me/other"))
    assert settings.roots == {"user": Path("/home/me/memory")}
    assert read(home, model="m", api_key_file="here").api_key_file == Path("here")
    for bad in ("/a\0b", "/a\ud800b"):
        assert "is not a valid path" in refused(home, {"MUNIMENT_API_KEY_FILE": bad})


# -- the environment


class Watched(Mapping):
    """An environment that notes what it is asked for, and is not read as a whole."""

    def __init__(self, inner):
        self.inner, self.asked = inner, set()

    def __getitem__(self, key):
        self.asked.add(key)
        return self.inner[key]

    def __iter__(self):
        raise AssertionError("the whole environment was read")

    __len__ = None


KEYS = ("OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_ORG_ID", "ANTHROPIC_API_KEY", "SSL_CERT_FILE")
URLS = ("OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
STRANGERS = dict.fromkeys(KEYS, "canary") | dict.fromkeys(URLS, "http://canary.invalid")


@pytest.mark.threat("T-RUN-05", control="own_variables")
@pytest.mark.parametrize("flags", [{}, {"model": "some-model", "base_url": SERVER}])
def test_the_variables_of_other_programs_are_never_read(home, flags):
    mine = {"MUNIMENT_HOME": str(home), "MUNIMENT_PROTOCOL": "json"}
    environment = Watched({**mine, **STRANGERS, **{name.lower(): STRANGERS[name] for name in STRANGERS}})
    assert read_settings(environment, **flags) == read_settings(mine, **flags)
    assert "MUNIMENT_PROTOCOL" in environment.asked
    assert {name for name in environment.asked if not name.startswith("MUNIMENT_")} <= {"HOME"}


# -- what settings may say


def test_a_models_name_prints_on_a_line(home, configure):
    for name in ("m", "org/model-7b:latest", "模型 é", "x" * MAX_MODEL_CHARS):
        assert read(home, model=name).model == read(home, {"MUNIMENT_MODEL": name}).model == name
    unseen = (*(f"canary{each}x" for each in "\n\u2003\u202e\u200b\u115f\udcff"), "canary\x1b[2J")
    for name in (" ", " m", "m ", "m\n", "x" * (MAX_MODEL_CHARS + 1), *unseen):
        for told in (refused(home, model=name), refused(home, {"MUNIMENT_MODEL": name})):
            assert "invalid model name: use 1 to 200 printable" in told, name
    configure("model = ''")
    assert "invalid model name" in refused(home)


def test_there_are_five_protocols_and_the_adapter_speaks_them(home):
    for protocol in ("auto", "tools", "json", "text", "decide"):
        assert read(home, {"MUNIMENT_PROTOCOL": protocol}).protocol == protocol
        assert OpenAIModel("m", base_url=SERVER, protocol=protocol).protocol == protocol
    for bad in ("JSON", "json ", "xml", "\x1b[2J"):
        assert "use one of auto, tools, json, text or decide" in refused(home, {"MUNIMENT_PROTOCOL": bad})
    assert "unknown on_model_failure 'stop'; use rules or fail" in refused(home, on_model_failure="stop")


def test_a_flag_about_a_language_model_is_no_use_to_the_rules_which_files_may_prepare(home, configure):
    for name, value in (("base_url", SERVER), ("api_key_file", "/key"), ("protocol", "json")):
        for environment, terms in (({}, {}), ({"MUNIMENT_MODEL": "m"}, {"model": "rules"})):
            told = refused(home, environment, **terms, **{name: value})
            assert f"--{name.replace('_', '-')} is for a language model" in told
            assert "--model NAME" in told
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
    "api_key_file = 'canary'": f"{RELATIVE}; use an absolute path",
    "api_key_file = ''": RELATIVE,
    'api_key_file = "/a\\u0000b"': "is not a valid path",
    "policy_signers = 'signers'": "policy_signers is relative",
    "embeddings = 'model'": "embeddings is relative",
    **dict.fromkeys(("roots = 'x'", "[roots]\nuser = 1"), "roots must be a table"),
    "[roots]\nuser = 'memory'": "the root of 'user' is relative",
    "[roots]\nuser = '~nobody-of-this-name/x'": "no home directory",
}


def test_what_the_file_may_not_say_is_told(home, configure):
    for text, words in FILES.items():
        configure(text)
        told = refused(home)
        assert words in told
        assert "config.toml" in told or words in {"no home directory", "is not a valid path"}


def test_a_configuration_that_went_away_or_whose_home_is_a_file_is_not_taken_for_none(home, tmp_path):
    """It may have asked for a stricter policy than the default."""
    (home / "config.toml").symlink_to(home / "elsewhere.toml")
    assert "broken link" in refused(home)
    (file := tmp_path / "file").write_text("no directory")
    assert ("cannot be read: Not a directory" in refused(file), file.read_text()) == (True, "no directory")


# -- roots


def test_default_roots_are_ours_and_private_and_a_bound_one_takes_the_place_of_ours(home, tmp_path):
    settings = read(home, roots={"user": tmp_path / "mine"})
    assert default_roots(settings, ("user",), tmp_path, create=True) == {"user": tmp_path / "mine"}
    assert ((tmp_path / "mine").exists(), (home / "user").exists()) == (False, False)
    project = home / "projects" / "work" / "memory"
    roots = default_roots(read(home), SCOPES, project, create=True)
    assert roots == {"user": home / "user", "project": project}
    assert [path.stat().st_mode & 0o777 for path in roots.values()] == [0o700] * 2


def test_scopes_and_roots_have_to_fit_and_a_home_that_cannot_hold_them_is_told(home, tmp_path):
    with pytest.raises(InvalidScope, match="unknown scope 'team'"):
        default_roots(read(home, roots={"team": tmp_path}), SCOPES, tmp_path, create=True)
    with pytest.raises(ConfigInvalid, match="--root team=DIR"):
        default_roots(read(home), ("user", "team"), tmp_path, create=True)
    (home / "user").rmdir()
    (home / "user").write_text("")
    with pytest.raises(ManagedMemoryUnavailable, match="not a directory"):
        default_roots(read(home), SCOPES, tmp_path, create=True)


def test_roots_are_given_as_pairs():
    pairs = ["user=/a = b, x", "project=/c"]
    assert (parse_roots([]), parse_roots(pairs)) == ({}, {"user": Path("/a = b, x"), "project": Path("/c")})
    for bad in ("user", "user=", "=/a", ""):
        with pytest.raises(ConfigInvalid, match="scope=DIR"):
            parse_roots([bad])
    with pytest.raises(ConfigInvalid, match="twice"):
        parse_roots(["user=/a", "user=/b"])


# -- the key

CANARY = "sk-canary-7f3a"


@pytest.fixture
def key_of(home):
    """The key that a program with this environment and these flags would use."""

    def key_of(environment=None, **flags):
        whole = {"MUNIMENT_HOME": str(home), **(environment or {})}
        return read_api_key(read_settings(whole, model="some-model", **flags), MappingProxyType(whole))

    return key_of


@pytest.fixture
def no_key(key_of):
    """What is told of a key that is none; nothing of it is shown, nor would be by a traceback."""

    def no_key(environment=None, *, by_any=True, **flags):
        with pytest.raises(ConfigInvalid) as caught:
            key_of(environment, **flags)
        chain = [caught.value]
        while by_any and (chain[-1].__cause__ or chain[-1].__context__):
            chain.append(chain[-1].__cause__ or chain[-1].__context__)
        assert "canary" not in "".join([*map(repr, chain), *traceback.format_exception(caught.value)])
        return str(caught.value)

    return no_key


def key_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_a_flag_beats_the_variable_and_that_the_files_that_are_named(home, tmp_path, key_of):
    flag, named, configured = (key_file(tmp_path / name, name) for name in ("flag", "named", "configured"))
    assert key_of() is None
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "API_KEY", "muniment_api_key"):
        assert key_of({name: CANARY}) is None  # That of another program.
    (home / "config.toml").write_text(f'api_key_file = "{configured}"\n')
    assert key_of() == key_of({"MUNIMENT_API_KEY": "", "MUNIMENT_API_KEY_FILE": ""}) == "configured"
    environment = {"MUNIMENT_API_KEY_FILE": named}
    assert key_of(environment) == key_of(environment | {"MUNIMENT_API_KEY": ""}, api_key_file="") == "named"
    environment["MUNIMENT_API_KEY"] = "variable"
    assert key_of(environment) == key_of({"MUNIMENT_API_KEY": "variable"}) == "variable"
    assert key_of(environment, api_key_file=flag) == key_of(environment, api_key_file=Path(flag)) == "flag"
    settings = read_settings(environment | {"MUNIMENT_API_KEY": CANARY, "HOME": str(home)})
    assert (CANARY in repr(settings), named in repr(settings)) == (False, True)


def test_white_space_around_a_key_is_no_part_of_it(tmp_path, key_of):
    for text in ("k", f"  {CANARY}\r\n", f"\n\t{CANARY}", "!~" * 2000, " " * 4000 + CANARY):
        assert key_of({"MUNIMENT_API_KEY": text}) == text.strip()
        assert key_of(api_key_file=key_file(tmp_path / "key", text)) == text.strip()


NO_KEYS = {
    b" \n": "is empty",
    **{
        f"{CANARY}{text}".encode(): "contains no valid key" for text in (" x", "\x00", "\x7f", "\x1b[2J", "é")
    },
    **dict.fromkeys((f"KEY=1\n{CANARY}".encode(), f"\ufeff{CANARY}".encode()), "contains no valid key"),
    **dict.fromkeys((CANARY.encode() + b"\xff", CANARY.encode("utf-16")), "contains no valid key"),
    **{f"{CANARY}{each * MAX_KEY_BYTES}".encode(): f"is longer than {MAX_KEY_BYTES} bytes" for each in "x "},
}


@pytest.mark.threat("T-LEAK-09", control="quiet_key")
def test_what_is_no_key_is_told_and_not_shown(tmp_path, no_key):
    for content, words in {b"": "is empty", **NO_KEYS}.items():
        path = key_file(tmp_path / "file", content)
        assert f"the key file {path} {words}" in no_key(api_key_file=path)
        if content:
            told = no_key({"MUNIMENT_API_KEY": os.fsdecode(content)})
            assert told.startswith(f"MUNIMENT_API_KEY {words}")
    assert no_key(api_key_file=str(tmp_path)) == f"the key file {tmp_path} cannot be read: Is a directory"
    assert "longer than" in no_key(api_key_file="/dev/zero")


def test_a_key_that_was_given_for_the_name_of_a_file_is_not_repeated(tmp_path, no_key, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key in (CANARY, f"{CANARY}/x", f"{CANARY}{'x' * 400}"):
        for given in ({"api_key_file": key}, {"environment": {"MUNIMENT_API_KEY_FILE": key}}):
            assert "need the path of a file that contains the key" in no_key(by_any=False, **given)


def test_a_key_comes_in_pieces_through_an_open_descriptor(key_of):
    reading, writing = os.pipe()

    def write():
        for part in (CANARY[:5], f"{CANARY[5:]}\n"):
            os.write(writing, part.encode())
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    assert key_of(api_key_file=f"/dev/fd/{reading}") == CANARY
    writer.join()
    os.close(reading)
