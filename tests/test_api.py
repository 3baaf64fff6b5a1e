"""`muniment.open` and `Memory`: what a library user holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

import muniment
from memories import descriptors, make_roots, photograph
from muniment import api
from muniment.errors import (
    ConfigInvalid,
    ConfinementUnavailable,
    InvalidContent,
    InvalidScope,
    ManagedMemoryUnavailable,
    MunimentError,
    PlatformUnsupported,
    PolicyInvalid,
    RememberRefused,
)
from muniment.jobs.request import RememberRequest
from muniment.testing.scripted import ScriptedModel, call, calls, say


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def workspace(tmp_path):
    workspace = tmp_path / "workspace"
    (workspace / ".git").mkdir(parents=True)
    return workspace


def test_a_fact_is_remembered_and_found_in_the_default_place(home, workspace):
    with muniment.open(workspace, home=home) as memory:
        result = memory.remember("The user prefers dark mode in all editors")
        assert (result.decided_by, result.enforcement, result.touched_scopes) == (
            "rules",
            "partial",
            ("user",),
        )
        (path,) = result.files_touched
        assert "dark mode" in (home / path).read_text()
        assert memory.place.policy.name == "strict"
        assert memory.remember("The user prefers dark mode in all editors").unchanged
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "state").is_dir()
    assert list(workspace.iterdir()) == [workspace / ".git"]


def test_two_workspaces_share_the_user_and_nothing_else(home, tmp_path):
    places = []
    for name in ("项目一", "项目二"):
        (tmp_path / name).mkdir()
        with muniment.open(tmp_path / name, home=home) as memory:
            places.append({scope: root.trusted_path for scope, root in memory.place.roots.items()})
    assert places[0]["user"] == places[1]["user"]
    assert places[0]["project"] != places[1]["project"]


def test_failure_is_raised_by_remember_and_told_by_attempt(home, workspace):
    def model():
        return ScriptedModel([calls(call("write_file", path="user/.a.md", content="x")), say("No.")])

    with muniment.open(workspace, home=home, model=model()) as memory, pytest.raises(RememberRefused):
        memory.remember("a fact")
    with muniment.open(workspace, home=home, model=model()) as memory:
        assert memory.attempt(RememberRequest("a fact")).error.code == "remember_refused"
        with pytest.raises(InvalidContent):
            memory.remember("")


def test_bound_roots_are_used_and_the_default_ones_not_made(home, workspace, tmp_path):
    roots = make_roots(tmp_path / "bound")
    with muniment.open(workspace, home=home, roots=roots) as memory:
        memory.remember("The user prefers dark mode", scope="user")
    assert list(roots["user"].rglob("*.md"))
    assert not (home / "user").exists()


def test_the_environment_names_home(workspace, tmp_path, monkeypatch):
    monkeypatch.setenv("MUNIMENT_HOME", str(tmp_path / "elsewhere"))
    muniment.open(workspace).close()
    assert (tmp_path / "elsewhere" / "user").is_dir()


def test_a_closed_memory_reads_and_writes_nothing(home, workspace):
    memory = muniment.open(workspace, home=home)
    memory.close()
    memory.close()
    before = photograph(home)
    result = memory.attempt(RememberRequest("The user prefers dark mode"))
    assert result.status == "failed"
    assert photograph(home) == before


def test_in_this_process_only_where_the_policy_says_so(home, workspace):
    with pytest.raises(ConfinementUnavailable):
        muniment.open(workspace, home=home, in_process=True)
    policies = home / "policies"
    policies.mkdir(parents=True)
    (policies / "loose.toml").write_text(
        'schema = "muniment-policy/1"\nname = "loose"\n[scopes]\nuser = {}\n'
        '[[allow]]\nid = "all"\nverbs = ["list", "read", "create"]\npaths = ["/user/**/*.md"]\n'
        '[confinement]\nrequire = "none"\n'
    )
    with muniment.open(workspace, home=home, policy="loose", in_process=True) as memory:
        assert memory.remember("The user prefers dark mode").enforcement == "none"


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"policy": "no-such"}, PolicyInvalid),
        ({"symlinks": "follow"}, ConfigInvalid),
        ({"roots": {"team": "/tmp"}}, InvalidScope),
        ({"roots": {"user": "/nowhere/at/all"}}, ManagedMemoryUnavailable),
    ],
)
def test_what_cannot_be_opened_is_told_and_leaves_nothing_open(home, workspace, terms, error):
    muniment.open(workspace, home=home).close()
    before = descriptors()
    with pytest.raises(error) as caught:
        muniment.open(workspace, home=home, **terms)
    assert isinstance(caught.value, MunimentError)
    assert descriptors() == before


def test_no_root_is_or_holds_the_state(home, workspace):
    for root in (home / "state", home, home / "policies"):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with pytest.raises(ManagedMemoryUnavailable):
            muniment.open(workspace, home=home, roots={"user": root})


def test_a_home_that_is_a_file_is_told(workspace, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((ManagedMemoryUnavailable, ConfigInvalid)):
        muniment.open(workspace, home=tmp_path / "file")


def test_elsewhere_than_on_linux_it_says_so(home, workspace, monkeypatch):
    monkeypatch.setattr(api.sys, "platform", "win32")
    with pytest.raises(PlatformUnsupported, match="win32"):
        muniment.open(workspace, home=home)


def test_the_package_shows_its_names_and_no_others():
    assert dir(muniment) == ["Memory", "MunimentError", "Sandbox", "__version__", "open"]
    assert all(getattr(muniment, name) for name in muniment.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = muniment.Nothing


def test_importing_opens_no_file_reads_no_environment_and_loads_nothing_heavy(tmp_path):
    code = """
import sys
opened = []
class Silent(dict):
    def __getattribute__(self, name):
        raise SystemExit("the environment was read")
import os
import importlib.machinery, importlib.util
events = {"open", "socket.__new__", "subprocess.Popen", "os.mkdir"}
sys.addaudithook(lambda event, args: opened.append(args[0]) if event in events else None)
os.environ = Silent()
import muniment
import muniment.names, muniment.errors
outside = [name for name in opened if not str(name).endswith((".py", ".pyc")) and "muniment" not in str(name)]
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"pydantic", "typer", "structlog", "rich", "re2"}), outside)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=30
    )
    assert done.stdout == "[] []\n"
    assert list(tmp_path.iterdir()) == []
