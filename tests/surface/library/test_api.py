"""`muniment.open` and `Memory`: what a library user holds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import muniment
from kit.memories import CANARY, IN_A_WORKER, descriptors, make_roots, photograph
from kit.served import URL, serve
from muniment import api, opening
from muniment.agent.filing import RuleWriter
from muniment.errors import (
    ConfigInvalid,
    ConfinementUnavailable,
    InvalidContent,
    InvalidScope,
    ManagedMemoryUnavailable,
    MunimentError,
    PolicyInvalid,
    RememberRefused,
)
from muniment.jobs.remember import remember
from muniment.jobs.request import RememberRequest
from muniment.settings import read_settings
from muniment.store.ledger import of_task
from muniment.store.state import State
from muniment.testing.minds import ScriptedModel, call, calls, say


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
            IN_A_WORKER,
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


WRITES = (calls(call("write_file", path="user/a.md", content="a fact\n")), say("Saved."))


def test_a_language_model_is_built_from_its_name_and_closed_with_the_memory(
    home, workspace, tmp_path, monkeypatch
):
    (tmp_path / "key").write_text(f"{CANARY}\n")
    opened = serve(monkeypatch, *WRITES)
    with muniment.open(
        workspace, home=home, model="org/m", base_url=URL, api_key_file=tmp_path / "key", protocol="json"
    ) as memory:
        (model,) = opened
        assert (model.name, model.base_url, model.protocol) == ("org/m", URL, "json")
        assert (model.api_key, model.closed) == (CANARY, 0)
        result = memory.remember("a fact")
        assert (result.decided_by, result.files_touched) == ("org/m", ("user/a.md",))
    assert model.closed == 1
    memory.close()
    assert model.closed == 1


def test_the_environment_and_the_file_name_a_language_model_too(home, workspace, monkeypatch):
    opened = serve(monkeypatch)
    home.mkdir()
    (home / "config.toml").write_text(f'base_url = "{URL}"\nprotocol = "text"\n')
    monkeypatch.setenv("MUNIMENT_MODEL", "m")
    monkeypatch.setenv("MUNIMENT_API_KEY", CANARY)
    muniment.open(workspace, home=home).close()
    (model,) = opened
    assert (model.name, model.base_url, model.protocol) == ("m", URL, "text")
    assert (model.api_key, model.closed) == (CANARY, 1)
    assert api.os.environ["MUNIMENT_API_KEY"] == CANARY


def test_the_rules_need_no_server_and_no_key_file(home, workspace, monkeypatch):
    opened = serve(monkeypatch)
    monkeypatch.setenv("MUNIMENT_MODEL", "m")
    monkeypatch.setenv("MUNIMENT_API_KEY_FILE", "/nowhere/at/all")
    with muniment.open(workspace, home=home, model="rules") as memory:
        assert memory.remember("The user prefers dark mode").decided_by == "rules"
    assert opened == []


def test_a_model_of_the_callers_own_stays_the_callers(home, workspace, monkeypatch):
    opened = serve(monkeypatch, *WRITES)
    monkeypatch.setenv("MUNIMENT_MODEL", "m")  # without a server, and of no concern here
    mine = ScriptedModel(WRITES, name="mine")
    mine.close = lambda: pytest.fail("closed a model that it was lent")
    with muniment.open(workspace, home=home, model=mine) as memory:
        assert memory.remember("a fact").decided_by == "mine"
    assert opened == []


def test_a_model_of_the_callers_own_may_be_false(home, workspace):
    class Quiet(ScriptedModel):
        def __bool__(self):
            return False

    with muniment.open(workspace, home=home, model=Quiet(WRITES, name="mine")) as memory:
        assert memory.remember("a fact").decided_by == "mine"


BAD_MODELS = [
    ({"model": "m"}, "--base-url URL, such as http://127.0.0.1:8080/v1"),
    ({"model": "m\n", "base_url": URL}, "a model's name"),
    ({"model": "m", "base_url": URL, "protocol": "xml"}, "no protocol 'xml'"),
    ({"model": "m", "base_url": URL, "api_key_file": "/nowhere/at/all"}, "key file cannot be read"),
    ({"base_url": URL}, "--model NAME"),
    ({"model": RuleWriter(), "base_url": URL}, "not with an object"),
    ({"model": RuleWriter(), "api_key_file": "/nowhere"}, "not with an object"),
    ({"model": RuleWriter(), "protocol": "json"}, "not with an object"),
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("terms", "words"), BAD_MODELS)
def test_a_model_that_cannot_be_built_is_told_and_creates_nothing(home, workspace, monkeypatch, terms, words):
    muniment.open(workspace, home=home).close()
    shutil.rmtree(home)
    opened, before = serve(monkeypatch), descriptors()
    with pytest.raises(ConfigInvalid) as caught:
        muniment.open(workspace, home=home, **terms)
    assert words in str(caught.value)
    assert not home.exists()
    assert descriptors() == before
    assert opened == []


def test_a_model_that_its_adapter_refuses_creates_nothing(home, workspace, monkeypatch):
    def refuse(*_args, **_terms):
        raise ConfigInvalid("no such base URL")

    serve(monkeypatch)
    monkeypatch.setattr(sys.modules["muniment.agent.openai"], "OpenAIModel", refuse)
    with pytest.raises(ConfigInvalid, match="no such base URL"):
        muniment.open(workspace, home=home, model="m", base_url="gopher://")
    assert not home.exists()


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"policy": "no-such"}, PolicyInvalid),
        ({"symlinks": "follow"}, ConfigInvalid),
        ({"roots": {"user": "/nowhere/at/all"}}, ManagedMemoryUnavailable),
    ],
)
def test_a_language_model_is_closed_where_the_memory_cannot_be_opened(
    home, workspace, monkeypatch, terms, error
):
    opened = serve(monkeypatch)
    with pytest.raises(error):
        muniment.open(workspace, home=home, model="m", base_url=URL, **terms)
    (model,) = opened
    assert model.closed == 1


def test_open_model_gives_the_model_that_settings_name_and_closes_it(home, monkeypatch):
    environment = {"MUNIMENT_HOME": str(home), "MUNIMENT_API_KEY": CANARY}
    with opening.open_model(read_settings(environment), environment) as model:
        assert model.name == "rules"
    opened = serve(monkeypatch)
    settings = read_settings(environment, model="m", base_url=URL)
    with opening.open_model(settings, environment) as model:
        assert (model.name, model.api_key, model.closed) == ("m", CANARY, 0)
    assert opened == [model]
    assert model.closed == 1
    assert environment["MUNIMENT_API_KEY"] == CANARY


@pytest.mark.threat("T-LEAK-09", control="key_apart")
@pytest.mark.parametrize("model", ["m", "rules"])
def test_no_root_holds_the_key_file_nor_the_file_that_a_link_to_it_leads_to(
    home, workspace, tmp_path, monkeypatch, model
):
    serve(monkeypatch)
    roots = make_roots(tmp_path / "bound")
    inside = roots["user"] / "deep" / "key"
    inside.parent.mkdir()
    inside.write_text(CANARY)
    (tmp_path / "link").symlink_to(inside)
    before = descriptors()
    for path in (inside, tmp_path / "link"):
        monkeypatch.setenv("MUNIMENT_API_KEY_FILE", str(path))
        with pytest.raises(ManagedMemoryUnavailable) as caught:
            muniment.open(
                workspace, home=home, model=model, roots=roots, **({"base_url": URL} if model == "m" else {})
            )
        assert str(caught.value) == f"user: its root lies around {path}; bind a directory apart from it"
        assert CANARY not in str(caught.value)
    assert descriptors() == before
    beside = tmp_path / "bound" / "key"
    beside.write_text(CANARY)
    monkeypatch.setenv("MUNIMENT_API_KEY_FILE", str(beside))
    muniment.open(workspace, home=home, model="rules", roots=roots).close()


def test_no_root_is_or_holds_the_state(home, workspace):
    for root in (home / "state", home, home / "policies"):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with pytest.raises(ManagedMemoryUnavailable):
            muniment.open(workspace, home=home, roots={"user": root})


def test_places_share_a_state_which_stays_the_callers(home, tmp_path):
    """As a daemon does: what one place commits the other one knows, and ends of places end no state."""
    settings = read_settings({"MUNIMENT_HOME": str(home)})
    places = {}
    with State(home / "state") as state:
        before = descriptors()
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            places[name] = opening.find_place(settings, tmp_path / name, state=state)
        assert all(place.state is state for place in places.values())
        request = RememberRequest("The user prefers dark mode", scope="user", task_id="task-1")
        done = remember(request, places["one"], RuleWriter())
        assert done.error is None
        places["one"].close_roots()
        places["one"].close_roots()
        assert of_task(state, "task-1") is not None
        again = remember(request, places["two"], RuleWriter())
        assert (again.repeated, again.files_touched) == (True, done.files_touched)
        closed = remember(RememberRequest("The user drinks tea"), places["one"], RuleWriter())
        assert closed.status == "failed"
        places["two"].close_roots()
        assert descriptors() == before
        assert of_task(state, "task-1") is not None
    with pytest.raises(ManagedMemoryUnavailable):
        of_task(state, "task-1")


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"policy": "no-such"}, PolicyInvalid),
        ({"roots": {"user": Path("/nowhere/at/all")}}, ManagedMemoryUnavailable),
    ],
)
def test_a_shared_state_is_not_closed_where_a_place_cannot_be_opened(home, workspace, terms, error):
    settings = read_settings({"MUNIMENT_HOME": str(home)}, **terms)
    with State(home / "state") as state:
        before = descriptors()
        with pytest.raises(error):
            opening.find_place(settings, workspace, state=state)
        assert descriptors() == before
        assert of_task(state, "task-1") is None


def test_a_shared_state_that_cannot_recover_closes_the_roots_and_stays_open(home, workspace, monkeypatch):
    def full(*_):
        raise ManagedMemoryUnavailable("user", "the disk is full")

    monkeypatch.setattr(opening, "recover_all", full)
    with State(home / "state") as state:
        before = descriptors()
        with pytest.raises(ManagedMemoryUnavailable, match="the disk is full"):
            opening.find_place(read_settings({"MUNIMENT_HOME": str(home)}), workspace, state=state)
        assert descriptors() == before
        assert of_task(state, "task-1") is None


def test_a_place_of_its_own_closes_its_state_with_its_roots(home, workspace):
    before = descriptors()
    place = opening.find_place(read_settings({"MUNIMENT_HOME": str(home)}), workspace)
    assert of_task(place.state, "task-1") is None
    place.close()
    with pytest.raises(ManagedMemoryUnavailable):
        of_task(place.state, "task-1")
    assert descriptors() == before


def test_a_home_that_is_a_file_is_told(workspace, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((ManagedMemoryUnavailable, ConfigInvalid)):
        muniment.open(workspace, home=tmp_path / "file")


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
