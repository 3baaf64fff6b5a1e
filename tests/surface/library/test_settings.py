"""Settings: who wins, where a workspace begins, and that nothing is read from one."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from muniment.agent.model import MAX_MODEL_CHARS
from muniment.agent.openai import OpenAIModel
from muniment.errors import ConfigInvalid, InvalidScope, ManagedMemoryUnavailable
from muniment.settings import (
    MAX_CONFIG_BYTES,
    default_roots,
    find_workspace,
    parse_roots,
    read_settings,
    workspace_key,
)

SCOPES = ("user", "project")


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return home


def configure(home, text):
    data = text if isinstance(text, bytes) else text.encode()
    (home / "config.toml").write_bytes(data)


def read(home, environment=None, **flags):
    return read_settings({"MUNIMENT_HOME": str(home), **(environment or {})}, **flags)


def test_a_configuration_that_went_away_is_not_taken_for_none(home):
    """It may have asked for a stricter policy than the default."""
    (home / "config.toml").symlink_to(home / "elsewhere.toml")
    with pytest.raises(ConfigInvalid, match="leads nowhere"):
        read(home)


def test_without_anything_there_are_defaults_and_nothing_is_created(tmp_path):
    settings = read_settings({"HOME": str(tmp_path)})
    assert settings.home == tmp_path / ".muniment"
    assert (settings.policy, dict(settings.roots), settings.symlinks) == ("strict", {}, "refuse")
    assert (settings.model, settings.base_url, settings.protocol) == ("rules", None, "auto")
    assert (settings.api_key_file, settings.key_in_variable) == (None, False)
    assert settings.apart == (
        settings.home / "state",
        settings.home / "policies",
        settings.home / "config.toml",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_flag_beats_the_environment_and_that_the_file_and_that_the_default(home):
    roots = '[roots]\nuser = "/file/user"\nproject = "/file/project"\n'
    configure(home, f'policy = "from-file"\nsymlinks = "from-file"\n{roots}')
    assert read(home).policy == "from-file"
    assert read(home, {"MUNIMENT_POLICY": "from-environment"}).policy == "from-environment"
    assert read(home, {"MUNIMENT_POLICY": "x"}, policy="from-flag").policy == "from-flag"
    settings = read(home, roots={"user": Path("/flag/user")}, symlinks="refuse", policy=None)
    assert settings.roots == {"user": Path("/flag/user"), "project": Path("/file/project")}
    assert settings.symlinks == "refuse"


def test_empty_means_not_asked(home):
    assert read(home, {"MUNIMENT_POLICY": ""}, policy="", symlinks=None).policy == "strict"
    assert read_settings({"MUNIMENT_HOME": "", "HOME": str(home)}).home == home / ".muniment"


SOURCES = [
    ("policy", "MUNIMENT_POLICY", "strict"),
    ("model", "MUNIMENT_MODEL", "rules"),
    ("base_url", "MUNIMENT_BASE_URL", None),
    ("api_key_file", "MUNIMENT_API_KEY_FILE", None),
    ("protocol", "MUNIMENT_PROTOCOL", "auto"),
    ("policy_signers", "MUNIMENT_POLICY_SIGNERS", None),
]


@pytest.mark.parametrize(("name", "variable", "default"), SOURCES)
@pytest.mark.parametrize("winner", ["flag", "environment", "file", "default"])
def test_each_of_these_is_asked_of_the_flag_first_and_of_the_default_last(
    home, name, variable, default, winner
):
    paths = ("/flag", "/environment", "/file")
    values = {"protocol": ("json", "text", "tools"), "api_key_file": paths, "policy_signers": paths}
    flag, environment, file = values.get(name, ("flag", "environment", "file"))
    sources = ["flag", "environment", "file", "default"]
    given = sources[sources.index(winner) :]
    # Without a model, flags about one would be refused.
    terms = {} if name == "model" else {"model": "some-model"}
    if "flag" in given:
        terms[name] = flag
    if "file" in given:
        configure(home, f'{name} = "{file}"\n')
    settings = read(home, {variable: environment} if "environment" in given else {}, **terms)
    wanted = {"flag": flag, "environment": environment, "file": file, "default": default}[winner]
    found = getattr(settings, name)
    assert found == (Path(wanted) if values.get(name) is paths and wanted else wanted)


def test_a_root_has_to_lie_apart_from_the_file_of_those_who_sign_policies(home):
    assert read(home, {"MUNIMENT_POLICY_SIGNERS": "/etc/signers"}).apart[-1] == Path("/etc/signers")


class Watched(dict):
    """An environment that notes what it is asked for."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = set()

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)

    def whole(self, *_):
        raise AssertionError("the whole environment was read")

    __iter__ = keys = values = items = copy = whole


STRANGERS = {
    "OPENAI_API_KEY": "canary",
    "OPENAI_BASE_URL": "http://canary.invalid/v1",
    "OPENAI_MODEL": "canary",
    "OPENAI_ORG_ID": "canary",
    "ANTHROPIC_API_KEY": "canary",
    "HTTP_PROXY": "http://canary.invalid",
    "HTTPS_PROXY": "http://canary.invalid",
    "ALL_PROXY": "http://canary.invalid",
    "SSL_CERT_FILE": "/canary",
}


@pytest.mark.threat("T-RUN-05", control="own_variables")
@pytest.mark.parametrize("flags", [{}, {"model": "some-model", "base_url": "http://127.0.0.1:1/v1"}])
def test_the_variables_of_other_programs_are_never_read(home, flags):
    mine = {"MUNIMENT_HOME": str(home), "MUNIMENT_PROTOCOL": "json"}
    environment = Watched({**mine, **STRANGERS, **{name.lower(): STRANGERS[name] for name in STRANGERS}})
    settings = read_settings(environment, **flags)
    assert settings == read_settings(mine, **flags)
    assert "MUNIMENT_PROTOCOL" in environment.asked
    assert {name for name in environment.asked if not name.startswith("MUNIMENT_")} <= {"HOME"}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("m", True),
        ("org/model-7b:latest", True),
        ("模型 é", True),
        ("x" * MAX_MODEL_CHARS, True),
        ("x" * (MAX_MODEL_CHARS + 1), False),
        (" ", False),
        (" m", False),
        ("m ", False),
        ("m\n", False),
        ("canary\nx", False),
        ("canary\u2003x", False),
        ("canary\x1b[2J", False),
        ("canary\u202e", False),
        ("canary\u200b", False),
        ("canary\u115f", False),
        ("canary\udcff", False),
    ],
)
@pytest.mark.parametrize("source", ["flag", "environment"])
def test_a_models_name_prints_on_a_line(home, name, is_one, source):
    terms = {"model": name} if source == "flag" else {}
    environment = {"MUNIMENT_MODEL": name} if source == "environment" else {}
    if is_one:
        assert read(home, environment, **terms).model == name
        return
    with pytest.raises(ConfigInvalid, match="a model's name has 1 to 200 printable") as caught:
        read(home, environment, **terms)
    assert "canary" not in str(caught.value)


def test_an_empty_name_in_the_file_is_no_model(home):
    configure(home, "model = ''")
    with pytest.raises(ConfigInvalid, match="a model's name has"):
        read(home)


@pytest.mark.parametrize("protocol", ["auto", "tools", "json", "text", "decide"])
def test_there_are_five_protocols_and_the_adapter_speaks_them(home, protocol):
    assert read(home, {"MUNIMENT_PROTOCOL": protocol}).protocol == protocol
    assert OpenAIModel("m", base_url="http://127.0.0.1:1/v1", protocol=protocol).protocol == protocol


@pytest.mark.parametrize("protocol", ["JSON", "json ", "xml", "\x1b[2J"])
def test_another_protocol_is_told_with_those_that_there_are(home, protocol):
    with pytest.raises(ConfigInvalid, match="there are auto, tools, json, text and decide") as caught:
        read(home, {"MUNIMENT_PROTOCOL": protocol})
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ({"base_url": "http://127.0.0.1:1/v1"}, "--base-url is for a language model"),
        ({"api_key_file": "/key"}, "--api-key-file is for a language model"),
        ({"protocol": "json"}, "--protocol is for a language model"),
    ],
)
def test_a_flag_about_a_language_model_is_no_use_to_the_rules(home, flag, words):
    for environment, terms in (({}, flag), ({"MUNIMENT_MODEL": "m"}, {**flag, "model": "rules"})):
        with pytest.raises(ConfigInvalid) as caught:
            read(home, environment, **terms)
        assert words in str(caught.value)
        assert "--model NAME" in str(caught.value)
    assert read(home, {"MUNIMENT_MODEL": "m"}, **flag).model == "m"


def test_the_environment_and_the_file_may_prepare_a_model_that_a_run_does_not_use(home):
    configure(home, 'base_url = "http://127.0.0.1:1/v1"\napi_key_file = "/key"\nprotocol = "json"\n')
    assert read(home, {"MUNIMENT_BASE_URL": "http://127.0.0.1:2/v1"}).model == "rules"


def test_a_key_file_is_found_from_home_and_from_here_but_in_the_file_not_from_here(home, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    configure(home, 'api_key_file = "~/key"\n')
    assert read(home).api_key_file == Path("/home/me/key")
    assert read(home, {"MUNIMENT_API_KEY_FILE": "~/other"}).api_key_file == Path("/home/me/other")
    assert read(home, model="m", api_key_file="here").api_key_file == Path("here")


def test_the_key_of_the_server_in_the_file_is_for_no_other(home):
    configure(home, 'model = "m"\nbase_url = "https://a.example/v1"\napi_key_file = "/key-of-a"\n')
    assert read(home).api_key_file == Path("/key-of-a")
    assert read(home, base_url="https://a.example/v1/").api_key_file == Path("/key-of-a")
    assert read(home, base_url="https://b.example/v1").api_key_file is None
    assert read(home, {"MUNIMENT_BASE_URL": "https://b.example/v1"}).api_key_file is None
    assert read(home, base_url="https://b.example/v1", api_key_file="/b").api_key_file == Path("/b")
    configure(home, 'model = "m"\napi_key_file = "/key"\n')
    assert read(home, base_url="https://b.example/v1").api_key_file == Path("/key")


def test_a_root_has_to_lie_apart_from_the_key_file_whatever_the_key_is_taken_from(home):
    for environment in ({}, {"MUNIMENT_API_KEY": "k"}):
        settings = read(home, {"MUNIMENT_API_KEY_FILE": "/secrets/key", **environment})
        assert settings.apart == (
            home / "state",
            home / "policies",
            home / "config.toml",
            Path("/secrets/key"),
        )


def test_a_relative_home_is_taken_from_here(home, monkeypatch):
    monkeypatch.chdir(home)
    assert read_settings({"MUNIMENT_HOME": "there"}).home == home / "there"


def test_without_home_the_system_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("HOME", raising=False)
    record = pwd.struct_passwd(("me", "x", os.getuid(), 0, "", str(tmp_path), ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: record)
    assert read_settings({}).home == tmp_path / ".muniment"


def test_without_any_home_somebody_has_to_say_one(monkeypatch):
    def nobody(_):
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ConfigInvalid, match="MUNIMENT_HOME"):
        read_settings({})


def test_a_tilde_in_the_file_is_home(home, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    configure(home, '[roots]\nuser = "~/memory"\n')
    assert read(home).roots == {"user": Path("/home/me/memory")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "rules = 'x'",
            "unknown key 'rules'; there are policy, model, base_url, api_key_file, protocol, on_",
        ),
        ("api_key = 'canary'", "unknown key 'api_key'"),
        ("policy = 1", "policy must be a string"),
        ("symlinks = ['refuse']", "symlinks must be a string"),
        ("model = 1", "model must be a string"),
        ("base_url = {}", "base_url must be a string"),
        ("api_key_file = true", "api_key_file must be a string"),
        ("api_key_file = 'canary'", "api_key_file is relative; give an absolute path"),
        ("api_key_file = ''", "api_key_file is relative"),
        ('api_key_file = "/a\\u0000b"', "is no path"),
        ("protocol = ['json']", "protocol must be a string"),
        ("policy_signers = 'signers'", "policy_signers is relative"),
        ("policy_signers = ['/signers']", "policy_signers must be a string"),
        ("roots = 'x'", "roots must be a table"),
        ("[roots]\nuser = 1", "roots must be a table"),
        ("[roots]\nuser = 'memory'", "the root of 'user' is relative"),
        ("[roots]\nuser = '~nobody-of-this-name/x'", "no home directory"),
        ("policy = ", "is not valid TOML"),
        (b"policy = '\xff'", "is not valid TOML"),
        ("#" * (MAX_CONFIG_BYTES + 1), "larger than"),
    ],
)
def test_what_the_file_may_not_say_is_told(home, text, words):
    configure(home, text)
    with pytest.raises(ConfigInvalid) as caught:
        read(home)
    assert words in str(caught.value)
    assert "canary" not in str(caught.value)
    assert "config.toml" in str(caught.value) or words in {"no home directory", "is no path"}


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_default(home):
    (home / "config.toml").mkdir()
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        read(home)


@pytest.mark.parametrize("bad", ["/a\0b", "/a\ud800b"])
def test_what_no_file_can_be_called_is_told(home, bad):
    with pytest.raises(ConfigInvalid, match="is no path"):
        read_settings({"MUNIMENT_HOME": bad})
    with pytest.raises(ConfigInvalid, match="is no path"):
        read(home, {"MUNIMENT_API_KEY_FILE": bad})


def test_a_workspace_is_the_nearest_ancestor_with_git(fs):
    for path in ("/code/.git", "/code/packages/deep/er", "/code/packages/inner/src", "/plain/dir"):
        fs.create_dir(path)
    fs.create_file("/code/packages/inner/.git", contents="gitdir: elsewhere")
    assert find_workspace(Path("/code/packages/deep/er")) == Path("/code")
    assert find_workspace(Path("/code/packages/inner/src")) == Path("/code/packages/inner")
    assert find_workspace(Path("/code")) == Path("/code")
    assert find_workspace(Path("/plain/dir")) == Path("/plain/dir")


def test_a_workspace_is_known_by_its_real_path(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert find_workspace(tmp_path / "link") == find_workspace(tmp_path / "real")


def test_a_dangling_git_still_marks_a_workspace(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / ".git").symlink_to("nowhere")
    assert find_workspace(tmp_path / "a" / "b") == tmp_path / "a"


@pytest.mark.parametrize("bad", ["missing", "file", "loop", "nul\0"])
def test_what_is_no_workspace_is_told(tmp_path, bad):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigInvalid, match="workspace"):
        find_workspace(tmp_path / bad)


NAMES = ["项目一", "项目二", "a", "A", "a-", "..a", "x" * 200, "é", "e\u0301", "a b", "\udcff", "-", "CON"]


def test_no_two_workspaces_share_a_key():
    keys = {workspace_key(Path("/code") / name) for name in NAMES}
    assert len(keys) == len(NAMES)
    for key in keys:
        slug, _, digest = key.rpartition("-")
        assert slug
        assert len(digest) == 32
        assert len(key) <= 80
        assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert workspace_key(Path("/one/same")) != workspace_key(Path("/two/same"))
    assert workspace_key(Path("/code/My App!")).startswith("my-app-")
    assert workspace_key(Path("/code/项目一")).startswith("workspace-")


def test_default_roots_are_ours_and_private(home, tmp_path):
    settings = read(home)
    roots = default_roots(settings, SCOPES, tmp_path, create=True)
    assert roots == {"user": home / "user", "project": home / "projects" / workspace_key(tmp_path) / "memory"}
    for path in roots.values():
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_bound_root_takes_the_place_of_ours_and_is_not_created(home, tmp_path):
    settings = read(home, roots={"user": tmp_path / "mine"})
    assert default_roots(settings, ("user",), tmp_path, create=True) == {"user": tmp_path / "mine"}
    assert not (tmp_path / "mine").exists()
    assert not (home / "user").exists()


def test_scopes_and_roots_have_to_fit(home, tmp_path):
    with pytest.raises(InvalidScope, match="no scope 'team'"):
        default_roots(read(home, roots={"team": tmp_path}), SCOPES, tmp_path, create=True)
    with pytest.raises(ConfigInvalid, match="--root team=DIR"):
        default_roots(read(home), ("user", "team"), tmp_path, create=True)


def test_a_home_that_cannot_hold_roots_is_told(home, tmp_path):
    (home / "user").write_text("")
    with pytest.raises(ManagedMemoryUnavailable, match="not a directory"):
        default_roots(read(home), SCOPES, tmp_path, create=True)


def test_roots_are_given_as_pairs():
    assert parse_roots([]) == {}
    assert parse_roots(["user=/a=b", "project=/c"]) == {"user": Path("/a=b"), "project": Path("/c")}
    for bad in ("user", "user=", "=/a", ""):
        with pytest.raises(ConfigInvalid, match="scope=DIR"):
            parse_roots([bad])
    with pytest.raises(ConfigInvalid, match="twice"):
        parse_roots(["user=/a", "user=/b"])


def test_what_follows_a_model_that_failed_is_said_in_file_variable_or_flag(home):
    (home / "config.toml").write_text('on_model_failure = "fail"\n')
    environment = {"MUNIMENT_HOME": str(home)}
    assert read_settings({"MUNIMENT_HOME": str(home.parent / "other")}).on_model_failure == "rules"
    assert read_settings(environment).on_model_failure == "fail"
    assert read_settings({**environment, "MUNIMENT_ON_MODEL_FAILURE": "rules"}).on_model_failure == "rules"
    assert read_settings(environment, on_model_failure="rules").on_model_failure == "rules"
    with pytest.raises(ConfigInvalid, match="on_model_failure is rules or fail, not 'stop'"):
        read_settings(environment, on_model_failure="stop")
