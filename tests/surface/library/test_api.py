"""`muniment.open` and `Memory`: what a library user holds."""

import ast
import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

import muniment
from kit.cli.commands import invoked
from kit.memories import CANARY, IN_A_WORKER, descriptors, make_roots, photograph, put
from kit.policy.files import SCOPES, allow, write
from kit.recall.places import paths
from kit.served import URL, serve
from muniment import api, errors, opening
from muniment.agent.filing import RuleWriter
from muniment.agent.model import ModelError
from muniment.operations.remember import remember
from muniment.sandbox.fence.pool import shared_zygote
from muniment.settings import read_settings
from muniment.store.ledger import of_task
from muniment.store.state import State
from muniment.store.watching import looks_of
from muniment.testing.minds import ScriptedModel, call, calls, say
from muniment.types import DreamRequest, ForgetRequest, RememberRequest

DARK = "The user prefers dark mode in all editors"
PRIVATE, PROJECT = "The recycling is collected on Tuesdays", "The project uses pnpm workspaces"
STAGING = "Staging runs on Postgres 16 behind pgbouncer"
NONSENSE = ["", "@", "user/x.md", "nowhere/x.md@00", "user/x.md@zz", "\ud800@\0"]
WRITES = (calls(call("write_file", path="user/a.md", content="a fact\n")), say("Saved."))
REFUSED = (calls(call("write_file", path="user/.a.md", content="x")), say("No."))


home = pytest.fixture(lambda tmp_path: tmp_path / "home")


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "workspace" / ".git").mkdir(parents=True)
    return tmp_path / "workspace"


# Opens the memory of the workspace in home.
opens = pytest.fixture(lambda home, workspace: lambda **terms: muniment.open(workspace, home=home, **terms))


# -- a memory


def test_a_fact_is_remembered_and_found_in_the_default_place(opens, home, workspace):
    with opens() as memory:
        result, expected = memory.remember(DARK), ("rules", IN_A_WORKER, ("user",))
        assert (result.decided_by, result.enforcement, result.touched_scopes) == expected
        (path,) = result.files_touched
        assert ("dark mode" in (home / path).read_text(), memory.place.policy.name) == (True, "strict")
        assert memory.remember(DARK).unchanged
    assert (home.stat().st_mode & 0o777, (home / "state").is_dir()) == (0o700, True)
    assert list(workspace.iterdir()) == [workspace / ".git"]
    memory.close()
    before = photograph(home)  # A closed memory reads and writes nothing.
    assert memory.try_remember(RememberRequest("The user drinks tea")).status == "failed"
    assert photograph(home) == before


def test_failure_is_raised_by_remember_and_told_by_attempt(opens):
    failing = {"on_model_failure": "fail"}
    with opens(model=ScriptedModel(REFUSED), **failing) as memory, pytest.raises(errors.RememberRefused):
        memory.remember("a fact")
    with opens(model=ScriptedModel(REFUSED), **failing) as memory:
        assert memory.try_remember(RememberRequest("a fact")).error.code == "remember_refused"
        with pytest.raises(errors.InvalidContent):
            memory.remember("")


def test_bound_roots_are_used_and_no_default_ones_made(workspace, home, tmp_path, monkeypatch):
    roots = make_roots(tmp_path / "bound")
    monkeypatch.setenv("MUNIMENT_HOME", str(home))
    with muniment.open(workspace, roots=roots) as memory:
        memory.remember(DARK, scope="user")
    assert list(roots["user"].rglob("*.md"))
    assert ((home / "state").is_dir(), (home / "user").exists()) == (True, False)


def test_who_names_a_home_gets_nothing_of_the_one_that_the_environment_names(
    opens, home, tmp_path, monkeypatch
):
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "config.toml").write_text("policy = 'none of mine'\n")
    monkeypatch.setenv("MUNIMENT_HOME", str(other))
    opens().close()
    assert (home / "state").is_dir()
    assert [path.name for path in other.iterdir()] == ["config.toml"]


def test_in_this_process_only_where_the_policy_says_so(opens, home):
    with pytest.raises(errors.ConfinementUnavailable):
        opens(in_process=True)
    rules = allow("/user/**/*.md", verbs=["list", "read", "create"]) + '[confinement]\nrequire = "none"\n'
    write(home / "policies" / "loose.toml", body=SCOPES + rules)
    with opens(policy="loose", in_process=True) as memory:
        assert memory.remember(DARK).enforcement == "none"


def test_what_cannot_be_opened_is_told_and_leaves_nothing_open_also_no_model(opens, monkeypatch):
    opens().close()
    opened, before = serve(monkeypatch), descriptors()
    for terms, error in (
        *(({"policy": "no-such"}, errors.PolicyInvalid), ({"symlinks": "follow"}, errors.ConfigInvalid)),
        ({"roots": {"team": "/tmp"}}, errors.InvalidScope),
        ({"roots": {"user": "/nowhere/at/all"}}, errors.ManagedMemoryUnavailable),
    ):
        for model in ({}, {"model": "m", "base_url": URL}):
            with pytest.raises(error):
                opens(**model, **terms)
    assert ([model.closed for model in opened], descriptors()) == ([1] * 4, before)


# -- its model


def test_a_language_model_is_built_from_its_name_and_closed_with_the_memory(opens, tmp_path, monkeypatch):
    (tmp_path / "key").write_text(f"{CANARY}\n")
    opened = serve(monkeypatch, *WRITES)
    terms = {"model": "org/m", "base_url": URL, "api_key_file": tmp_path / "key", "protocol": "json"}
    with opens(**terms) as memory:
        (model,) = opened
        assert (model.name, model.base_url, model.protocol) == ("org/m", URL, "json")
        assert (model.api_key, model.closed) == (CANARY, 0)
        result = memory.remember("a fact")
        assert (result.decided_by, result.files_touched) == ("org/m", ("user/a.md",))
    memory.close()
    assert model.closed == 1


def test_environment_and_file_name_a_model_too_and_the_rules_need_no_key(opens, home, monkeypatch):
    opened = serve(monkeypatch)
    home.mkdir()
    (home / "config.toml").write_text(f'base_url = "{URL}"\nprotocol = "text"\n')
    monkeypatch.setenv("MUNIMENT_MODEL", "m")
    monkeypatch.setenv("MUNIMENT_API_KEY", CANARY)
    opens().close()
    (model,) = opened
    assert (model.name, model.base_url, model.protocol) == ("m", URL, "text")
    assert (model.api_key, model.closed, api.os.environ["MUNIMENT_API_KEY"]) == (CANARY, 1, CANARY)
    monkeypatch.delenv("MUNIMENT_API_KEY")
    monkeypatch.setenv("MUNIMENT_API_KEY_FILE", "/nowhere/at/all")
    with opens(model="rules") as memory:
        assert memory.remember(DARK).decided_by == "rules"
    assert opened == [model]


@pytest.mark.parametrize("is_true", [True, False])
def test_a_model_of_the_callers_own_stays_the_callers(opens, monkeypatch, is_true):
    class Own(ScriptedModel):
        def __bool__(self):
            return is_true

        close = pytest.fail

    opened = serve(monkeypatch, *WRITES)
    monkeypatch.setenv("MUNIMENT_MODEL", "m")  # without a server, and of no concern here
    with opens(model=Own(WRITES, name="mine")) as memory:
        assert (memory.remember("a fact").decided_by, opened) == ("mine", [])


OWN = RuleWriter()
BAD_MODELS = [
    ({"model": "m"}, "--base-url URL, such as http://127.0.0.1:8080/v1"),
    ({"model": "m", "base_url": URL, "api_key_file": "/nowhere/at/all"}, "key file cannot be read"),
    ({"base_url": URL}, "--model NAME"),
    *(({"model": OWN, name: URL}, "not an object") for name in ("base_url", "api_key_file", "protocol")),
    ({"model": "m", "base_url": "gopher://"}, "no such base URL"),
]


def test_a_model_that_cannot_be_built_is_told_and_creates_nothing(opens, home, monkeypatch):
    opens().close()
    shutil.rmtree(home)
    opened, before = serve(monkeypatch), descriptors()
    for terms, words in BAD_MODELS:
        if words == "no such base URL":
            refuse = Mock(side_effect=errors.ConfigInvalid(words))
            monkeypatch.setattr(sys.modules["muniment.agent.openai"], "OpenAIModel", refuse)
        with pytest.raises(errors.ConfigInvalid, match=re.escape(words)):
            opens(**terms)
        assert not home.exists()
    assert (descriptors(), opened) == (before, [])


# -- where roots may not lie


@pytest.mark.threat("T-LEAK-09", control="key_apart")
@pytest.mark.parametrize("terms", [{"model": "m", "base_url": URL}, {"model": "rules"}])
def test_no_root_holds_the_key_file_nor_the_file_that_a_link_to_it_leads_to(
    opens, tmp_path, monkeypatch, terms
):
    serve(monkeypatch)
    roots = make_roots(tmp_path / "bound")
    inside, beside = (put(root, "deep/key", CANARY) for root in (roots["user"], tmp_path / "bound"))
    (link := tmp_path / "link").symlink_to(inside)
    open_now = []  # What the first opens for good, such as the zygote, is not left open by mistake.
    for path in (inside, link):
        monkeypatch.setenv("MUNIMENT_API_KEY_FILE", str(path))
        with pytest.raises(errors.ManagedMemoryUnavailable) as caught:
            opens(roots=roots, **terms)
        assert str(caught.value) == f"user: its root contains {path}; bind a directory outside it"
        open_now.append(descriptors())
    assert open_now[0] == open_now[1]
    monkeypatch.setenv("MUNIMENT_API_KEY_FILE", str(beside))
    opens(model="rules", roots=roots).close()


def test_no_root_is_or_holds_the_state(opens, home):
    for root in (home / "state", home, home / "policies"):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with pytest.raises(errors.ManagedMemoryUnavailable):
            opens(roots={"user": root})


# -- places


def test_places_share_the_callers_state_and_ones_own_is_closed_with_it(home, tmp_path, monkeypatch):
    """As a daemon does: what one place commits the other one knows, and ends of places end no state."""
    settings, places, nowhere = partial(read_settings, {"MUNIMENT_HOME": str(home)}), [], Path("/nowhere")
    bad = (({"policy": "no-such"}, "no-such"), ({"roots": {"user": nowhere}}, "user"), ({}, "disk is full"))
    shared_zygote().start()  # The first run would, and it stays: a descriptor more.
    with State(home / "state") as state:
        before = descriptors()
        for name in ("项目一", "项目二"):
            (tmp_path / name).mkdir()
            places.append(opening.find_place(settings(), tmp_path / name, state=state))
            assert places[-1].state is state
        one, two = places
        assert one.roots["user"].trusted_path == two.roots["user"].trusted_path
        assert one.roots["project"].trusted_path != two.roots["project"].trusted_path
        request = RememberRequest(DARK, scope="user", task_id="task-1")
        done = remember(request, one, RuleWriter())
        assert done.error is None
        for _ in range(2):
            one.close_roots()
        again = remember(request, two, RuleWriter())
        assert (again.repeated, again.files_touched) == (True, done.files_touched)
        assert remember(RememberRequest("The user drinks tea"), one, RuleWriter()).status == "failed"
        two.close_roots()
        full = errors.ManagedMemoryUnavailable("user", "the disk is full")
        with monkeypatch.context() as patched:
            patched.setattr(opening, "recover_all", Mock(side_effect=full))
            for terms, words in bad:
                with pytest.raises(errors.MunimentError, match=words):
                    opening.find_place(settings(**terms), tmp_path, state=state)
        looks_of(state).close()  # Which watch the root that both have, as long as the state is open.
        assert (descriptors(), of_task(state, "task-1") is None) == (before, False)
    before, place = descriptors(), opening.find_place(settings(), tmp_path)
    assert of_task(place.state, "task-1")
    place.close()
    for each in (state, place.state):
        with pytest.raises(errors.ManagedMemoryUnavailable):
            of_task(each, "task-1")
    assert descriptors() == before


# -- recall


@pytest.fixture
def memory(opens):
    with opens() as memory:
        yield memory


def test_what_was_remembered_is_recalled_by_words_about_it_until_it_was_shown_and_edited(memory):
    (path,) = memory.remember(DARK).files_touched
    recalled = memory.recall("editor theme", choose=True)  # The rules pick nothing, so the search decides.
    assert paths(recalled) == [path] == ["user/editor/prefers-dark-mode-in-all-editors.md"]
    assert (DARK in recalled.text, recalled.abstained) == (True, False)
    assert recalled.tokens == -(-len(recalled.text.encode()) // 3)
    assert paths(memory.recall("dark mode editors", exclude=NONSENSE)) == [path]
    shown = [entry.id for entry in recalled.entries]
    assert memory.recall("dark mode editors", exclude=shown).abstained
    file = memory.place.roots["user"].trusted_path / path.removeprefix("user/")
    text = file.read_text().replace("all editors", "every editor")
    file.unlink()  # As editors do, so that its directory shows it.
    file.write_text(text)
    assert paths(memory.recall("dark mode editors", exclude=shown)) == [path]


def test_a_memory_that_is_closed_leaves_no_thread_and_recalls_nothing_and_raises_nothing(opens):
    before = set(threading.enumerate())
    with opens() as memory, memory.conversation() as conversation:
        memory.remember(DARK)
        conversation.on_user_turn("dark mode editors")
    assert set(threading.enumerate()) - before == set()
    assert memory.recall("dark mode editors").error is not None


def test_the_model_picks_where_it_is_asked_to(opens, tmp_path):
    roots = make_roots(tmp_path)
    for name, text in {"one.md": "at night", "two.md": "on trains"}.items():
        put(roots["user"], name, f"Dark mode in the editor, {text}\n")
    answers = [say('{"read": ["c2"]}'), ModelError("gone"), say('{"read": ["c9"]}'), say('{"read": []}')]
    with opens(roots=roots, model=(model := ScriptedModel(answers))) as memory:
        every = paths(memory.recall("dark mode editor"))
        assert set(every) == {"user/one.md", "user/two.md"}
        for choose in (True, False):
            with memory.conversation(choose=choose) as conversation:
                assert (conversation.session._choose is not None) is choose
        assert model.requests == []
        picked = [paths(memory.recall("dark mode editor", choose=True)) for _ in answers]
        # Its pick first, and nothing dropped; else it failed, named what it was not shown, or helps not.
        assert (picked, len(model.requests)) == ([every[::-1], every, every, every], len(answers))


def test_a_subagent_searches_and_hands_in(memory):
    memory.remember(STAGING)
    handed_in, search = [], {"query": "staging postgres"}
    subagents, alone = memory.subagent(lambda fact: handed_in.append(fact) or "t1"), memory.subagent()
    names = [[tool["function"]["name"] for tool in each.tools] for each in (subagents, alone)]
    assert names == [["search_memory", "remember_this"], ["search_memory"]]
    assert "pgbouncer" in subagents.call("search_memory", json.dumps(search))
    assert (subagents.call("remember_this", {"fact": "x"}), handed_in) == ("submitted as task t1", ["x"])


def test_a_conversation_goes_on_where_its_state_says(memory):
    memory.remember(STAGING)
    asked = [{"role": "user", "content": "Where is the moon?"}]
    with memory.conversation() as conversation:
        assert "pgbouncer" in conversation.before_turn(asked)[0]["content"], "the project tier"
        state = json.loads(json.dumps(conversation.as_json()))
    with memory.conversation(state=state) as conversation:
        assert conversation.before_turn(asked) == asked


# -- without a repository around it (ADR 0032)


@pytest.fixture
def here(tmp_path, monkeypatch, home):
    """A directory to work in, which is no repository."""
    (directory := tmp_path / "here").mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("MUNIMENT_HOME", str(home))
    return directory


def scopes_of(*facts, **more):
    with muniment.open(**more) as memory:
        return [memory.remember(fact).touched_scopes for fact in facts]


@pytest.mark.usefixtures("here")
def test_without_a_repository_every_fact_is_the_users_and_no_project_is_made(tmp_path):
    assert scopes_of(PRIVATE, PROJECT) == [("user",), ("user",)]
    assert not (tmp_path / "home" / "projects").exists()
    with muniment.open() as memory, pytest.raises(errors.InvalidScope, match="not inside a repository"):
        memory.remember(PROJECT, scope="project")
    asked = invoked(["remember", "--scope", "project", PROJECT], {})
    assert (asked.exit_code, "pass --workspace DIR" in asked.stderr) == (1, True)


@pytest.mark.usefixtures("here")
def test_a_workspace_that_is_named_has_a_project_and_keeps_it():
    assert scopes_of(PROJECT, workspace=".") == [("project",)]
    with muniment.open() as memory:
        assert memory.recall("which workspaces does the project use").entries[0].path.startswith("project/")
    again = invoked(["remember", "--workspace", ".", PROJECT], {})
    assert (again.exit_code, "unchanged" in again.output.lower() or "project" in again.output) == (0, True)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_in_a_repository_a_fact_about_it_is_the_projects(here, make):
    make(here / ".git")
    assert scopes_of(PROJECT) == [("project",)]


@pytest.mark.usefixtures("here")
def test_a_policy_without_a_user_has_its_project_everywhere(tmp_path):
    (team := tmp_path / "team").mkdir(mode=0o700)
    with muniment.open(policy="team", roots={"team": team}) as memory:
        assert set(memory.place.roots) == {"project", "team"}


# -- the package


def test_the_package_shows_its_names_and_no_others():
    assert dir(muniment) == sorted(muniment.__all__)
    assert all(getattr(muniment, name) for name in muniment.__all__)
    source = ast.parse(Path(muniment.__file__).read_text())
    (typed,) = (
        node for node in source.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    )
    homes = {alias.name: node.module for node in typed.body for alias in node.names}
    assert {*homes, "__version__"} == set(muniment.__all__), "as a type checker sees it"
    assert all(getattr(muniment, name) is getattr(import_module(home), name) for name, home in homes.items())
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = muniment.Nothing


IMPORTING = """
import os, sys, importlib.machinery, importlib.util
class Silent(dict):
    def __getattribute__(self, name):
        raise SystemExit("the environment was read")
opened, environment, events = [], os.environ, {"open", "socket.__new__", "subprocess.Popen", "os.mkdir"}
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in events else None)
os.environ = Silent()
import muniment, muniment.names, muniment.errors
outside = [name for name in opened if not name.endswith((".py", ".pyc")) and "muniment" not in name]
loaded = lambda names: set(names.split()) & {name.partition(".")[0] for name in sys.modules}
print(loaded("pydantic typer structlog rich re2"), outside)
os.environ = environment
import muniment.recall.conversation
print(loaded("structlog"))
with muniment.open(*sys.argv[1:2], home=sys.argv[2]) as memory:
    memory.recall("dark mode")
    memory.subagent()
    memory.conversation().close()
print(loaded("openai httpx httpx2 starlette uvicorn jinja2 numpy safetensors"))
"""


def test_importing_opens_nothing_and_neither_it_nor_opening_loads_what_is_heavy(workspace, home, tmp_path):
    (here := tmp_path / "here").mkdir()
    command = [sys.executable, "-c", IMPORTING, str(workspace), str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=here, timeout=30)
    assert (done.stdout, list(here.iterdir())) == ("set() []\nset()\nset()\n", [])


def test_forget_and_dream_requests_take_one_argument_by_position():
    assert (ForgetRequest("a").query, DreamRequest("user").scope) == ("a", "user")
    for request_type in ForgetRequest, DreamRequest:
        with pytest.raises(TypeError):
            request_type("user", True)
