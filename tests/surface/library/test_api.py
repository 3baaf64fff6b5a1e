"""`muniment.open` and `Memory`: the API of a library user."""

import ast
import asyncio
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
from kit.cli.commands import run_in_process
from kit.memories import CANARY, WORKER_CONFINEMENT, count_descriptors, make_roots, take_snapshot, write_file
from kit.model_stub import URL, install_model_stub
from kit.policy.files import SCOPES, format_allow, write_policy
from kit.recall.contexts import list_paths
from muniment import api, errors, opening
from muniment.agent.filing import RuleWriter
from muniment.agent.model import ModelError
from muniment.errors import BadArguments
from muniment.operations.remember import remember
from muniment.sandbox.fence.pool import get_shared_zygote
from muniment.settings import read_settings
from muniment.store.ledger import find_commit
from muniment.store.state import State
from muniment.store.watching import get_watcher
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text
from muniment.types import DreamRequest, ForgetRequest, Recalled, RememberRequest

DARK = "The user prefers dark mode in all editors"
PRIVATE, PROJECT = "The recycling is collected on Tuesdays", "The project uses pnpm workspaces"
STAGING = "Staging runs on Postgres 16 behind pgbouncer"
NONSENSE = ["", "@", "user/x.md", "nowhere/x.md@00", "user/x.md@zz", "\ud800@\0"]
WRITES = (
    reply_with_calls(make_call("write_file", path="user/a.md", content="a fact\n")),
    reply_with_text("Saved."),
)
REFUSED = (reply_with_calls(make_call("write_file", path="user/.a.md", content="x")), reply_with_text("No."))


home = pytest.fixture(lambda tmp_path: tmp_path / "home")


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "workspace" / ".git").mkdir(parents=True)
    return tmp_path / "workspace"


# Opens the memory of the workspace in home.
open_memory = pytest.fixture(
    lambda home, workspace: lambda **options: muniment.open(workspace, home=home, **options)
)


# -- a memory


def test_fact_is_stored_and_found_in_default_home(open_memory, home, workspace):
    with open_memory() as memory:
        result, expected = memory.remember(DARK), ("rules", WORKER_CONFINEMENT, ("user",))
        assert (result.decided_by, result.enforcement, result.touched_scopes) == expected
        (path,) = result.files_touched
        assert ("dark mode" in (home / path).read_text(), memory.context.policy.name) == (True, "strict")
        assert memory.remember(DARK).unchanged
    assert (home.stat().st_mode & 0o777, (home / "state").is_dir()) == (0o700, True)
    assert list(workspace.iterdir()) == [workspace / ".git"]
    memory.close()
    before = take_snapshot(home)  # A closed memory reads and writes nothing.
    assert memory.try_remember(RememberRequest("The user drinks tea")).status == "failed"
    assert take_snapshot(home) == before


def test_remember_raises_failure_and_try_remember_returns_it(open_memory):
    failing = {"on_model_failure": "fail"}
    with (
        open_memory(model=ScriptedModel(REFUSED), **failing) as memory,
        pytest.raises(errors.RememberRefused),
    ):
        memory.remember("a fact")
    with open_memory(model=ScriptedModel(REFUSED), **failing) as memory:
        assert memory.try_remember(RememberRequest("a fact")).error.code == "remember_refused"
        with pytest.raises(errors.InvalidContent):
            memory.remember("")


def test_bound_roots_replace_default_roots(workspace, home, tmp_path, monkeypatch):
    roots = make_roots(tmp_path / "bound")
    monkeypatch.setenv("MUNIMENT_HOME", str(home))
    with muniment.open(workspace, roots=roots) as memory:
        memory.remember(DARK, scope="user")
    assert list(roots["user"].rglob("*.md"))
    assert ((home / "state").is_dir(), (home / "user").exists()) == (True, False)


def test_home_argument_overrides_environment(open_memory, home, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "config.toml").write_text("policy = 'none of mine'\n")
    monkeypatch.setenv("MUNIMENT_HOME", str(other))
    open_memory().close()
    assert (home / "state").is_dir()
    assert [path.name for path in other.iterdir()] == ["config.toml"]


def test_in_process_needs_permission_of_policy(open_memory, home):
    with pytest.raises(errors.ConfinementUnavailable):
        open_memory(in_process=True)
    rules = (
        format_allow("/user/**/*.md", verbs=["list", "read", "create"]) + '[confinement]\nrequire = "none"\n'
    )
    write_policy(home / "policies" / "loose.toml", body=SCOPES + rules)
    with open_memory(policy="loose", in_process=True) as memory:
        assert memory.remember(DARK).enforcement == "none"


def test_failed_open_raises_and_leaves_nothing_open(open_memory, monkeypatch):
    open_memory().close()
    opened, before = install_model_stub(monkeypatch), count_descriptors()
    for options, error in (
        *(({"policy": "no-such"}, errors.PolicyInvalid), ({"symlinks": "follow"}, errors.ConfigInvalid)),
        ({"roots": {"team": "/tmp"}}, errors.InvalidScope),
        ({"roots": {"user": "/nowhere/at/all"}}, errors.ManagedMemoryUnavailable),
    ):
        for model in ({}, {"model": "m", "base_url": URL}):
            with pytest.raises(error):
                open_memory(**model, **options)
    assert ([model.closed for model in opened], count_descriptors()) == ([1] * 4, before)


# -- its model


def test_language_model_is_built_and_closed_with_memory(open_memory, tmp_path, monkeypatch):
    (tmp_path / "key").write_text(f"{CANARY}\n")
    opened = install_model_stub(monkeypatch, *WRITES)
    options = {"model": "org/m", "base_url": URL, "api_key_file": tmp_path / "key", "protocol": "json"}
    with open_memory(**options) as memory:
        (model,) = opened
        assert (model.name, model.base_url, model.protocol) == ("org/m", URL, "json")
        assert (model.api_key, model.closed) == (CANARY, 0)
        result = memory.remember("a fact")
        assert (result.decided_by, result.files_touched) == ("org/m", ("user/a.md",))
    memory.close()
    assert model.closed == 1


def test_environment_and_file_configure_model(open_memory, home, monkeypatch):
    opened = install_model_stub(monkeypatch)
    home.mkdir()
    (home / "config.toml").write_text(f'base_url = "{URL}"\nprotocol = "text"\n')
    monkeypatch.setenv("MUNIMENT_MODEL", "m")
    monkeypatch.setenv("MUNIMENT_API_KEY", CANARY)
    open_memory().close()
    (model,) = opened
    assert (model.name, model.base_url, model.protocol) == ("m", URL, "text")
    assert (model.api_key, model.closed, api.os.environ["MUNIMENT_API_KEY"]) == (CANARY, 1, CANARY)
    monkeypatch.delenv("MUNIMENT_API_KEY")
    monkeypatch.setenv("MUNIMENT_API_KEY_FILE", "/nowhere/at/all")
    with open_memory(model="rules") as memory:
        assert memory.remember(DARK).decided_by == "rules"
    assert opened == [model]


@pytest.mark.parametrize("is_true", [True, False])
def test_model_of_caller_is_not_closed(open_memory, monkeypatch, is_true):
    class Own(ScriptedModel):
        def __bool__(self):
            return is_true

        close = pytest.fail

    opened = install_model_stub(monkeypatch, *WRITES)
    monkeypatch.setenv("MUNIMENT_MODEL", "m")  # It has no server, and must be ignored.
    with open_memory(model=Own(WRITES, name="mine")) as memory:
        assert (memory.remember("a fact").decided_by, opened) == ("mine", [])


OWN = RuleWriter()
BAD_MODELS = [
    ({"model": "m"}, "--base-url URL, such as http://127.0.0.1:8080/v1"),
    ({"model": "m", "base_url": URL, "api_key_file": "/nowhere/at/all"}, "key file cannot be read"),
    ({"base_url": URL}, "--model NAME"),
    *(({"model": OWN, name: URL}, "not an object") for name in ("base_url", "api_key_file", "protocol")),
    ({"model": "m", "base_url": "gopher://"}, "no such base URL"),
]


def test_invalid_model_raises_and_creates_nothing(open_memory, home, monkeypatch):
    open_memory().close()
    shutil.rmtree(home)
    opened, before = install_model_stub(monkeypatch), count_descriptors()
    for options, message in BAD_MODELS:
        if message == "no such base URL":
            refuse = Mock(side_effect=errors.ConfigInvalid(message))
            monkeypatch.setattr(sys.modules["muniment.agent.openai"], "OpenAIModel", refuse)
        with pytest.raises(errors.ConfigInvalid, match=re.escape(message)):
            open_memory(**options)
        assert not home.exists()
    assert (count_descriptors(), opened) == (before, [])


# -- roots that are not allowed


@pytest.mark.threat("T-LEAK-09", control="key_apart")
@pytest.mark.parametrize("options", [{"model": "m", "base_url": URL}, {"model": "rules"}])
def test_root_that_contains_key_file_is_rejected(open_memory, tmp_path, monkeypatch, options):
    install_model_stub(monkeypatch)
    roots = make_roots(tmp_path / "bound")
    inside, outside = (write_file(root, "deep/key", CANARY) for root in (roots["user"], tmp_path / "bound"))
    (link := tmp_path / "link").symlink_to(inside)
    # The first call also opens resources that stay open, such as the zygote; the second opens none.
    open_now = []
    for path in (inside, link):
        monkeypatch.setenv("MUNIMENT_API_KEY_FILE", str(path))
        with pytest.raises(errors.ManagedMemoryUnavailable) as caught:
            open_memory(roots=roots, **options)
        assert str(caught.value) == f"user: its root contains {path}; bind a directory outside it"
        open_now.append(count_descriptors())
    assert open_now[0] == open_now[1]
    monkeypatch.setenv("MUNIMENT_API_KEY_FILE", str(outside))
    open_memory(model="rules", roots=roots).close()


def test_root_that_contains_state_is_rejected(open_memory, home):
    for root in (home / "state", home, home / "policies"):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with pytest.raises(errors.ManagedMemoryUnavailable):
            open_memory(roots={"user": root})


# -- job contexts


def test_contexts_share_state_and_close_only_their_own(home, tmp_path, monkeypatch):
    """Each context sees the commits of the other, and closing one does not close the shared state."""
    settings, contexts, nowhere = partial(read_settings, {"MUNIMENT_HOME": str(home)}), [], Path("/nowhere")
    bad = (({"policy": "no-such"}, "no-such"), ({"roots": {"user": nowhere}}, "user"), ({}, "disk is full"))
    get_shared_zygote().start()  # Otherwise the first run starts it, and its descriptor stays open.
    with State(home / "state") as state:
        before = count_descriptors()
        for name in ("项目一", "项目二"):
            (tmp_path / name).mkdir()
            contexts.append(opening.open_context(settings(), tmp_path / name, state=state))
            assert contexts[-1].state is state
        one, two = contexts
        assert one.roots["user"].trusted_path == two.roots["user"].trusted_path
        assert one.roots["project"].trusted_path != two.roots["project"].trusted_path
        request = RememberRequest(DARK, scope="user", task_id="task-1")
        done = remember(request, one, RuleWriter())
        assert done.error is None
        for _ in range(2):
            one.close_roots()
        second_result = remember(request, two, RuleWriter())
        assert (second_result.repeated, second_result.files_touched) == (True, done.files_touched)
        assert remember(RememberRequest("The user drinks tea"), one, RuleWriter()).status == "failed"
        two.close_roots()
        full = errors.ManagedMemoryUnavailable("user", "the disk is full")
        with monkeypatch.context() as patched:
            patched.setattr(opening, "recover_roots", Mock(side_effect=full))
            for options, message in bad:
                with pytest.raises(errors.MunimentError, match=message):
                    opening.open_context(settings(**options), tmp_path, state=state)
        get_watcher(
            state
        ).close()  # Close the watchers of the shared root, which are open as long as the state.
        assert (count_descriptors(), find_commit(state, "task-1") is None) == (before, False)
    before, context = count_descriptors(), opening.open_context(settings(), tmp_path)
    assert find_commit(context.state, "task-1")
    context.close()
    for each in (state, context.state):
        with pytest.raises(errors.ManagedMemoryUnavailable):
            find_commit(each, "task-1")
    assert count_descriptors() == before


# -- recall


@pytest.fixture
def memory(open_memory):
    with open_memory() as memory:
        yield memory


def test_recall_omits_excluded_entry_until_it_is_edited(memory):
    (path,) = memory.remember(DARK).files_touched
    recalled = memory.recall("editor theme", choose=True)  # The rules select nothing, so the search decides.
    assert list_paths(recalled) == [path] == ["user/editor/prefers-dark-mode-all-editors.md"]
    assert (DARK in recalled.text, recalled.abstained) == (True, False)
    assert recalled.tokens == -(-len(recalled.text.encode()) // 3)
    assert list_paths(memory.recall("dark mode editors", exclude=NONSENSE)) == [path]
    injected_ids = [entry.id for entry in recalled.entries]
    assert memory.recall("dark mode editors", exclude=injected_ids).abstained
    file = memory.context.roots["user"].trusted_path / path.removeprefix("user/")
    text = file.read_text().replace("all editors", "every editor")
    file.unlink()  # As editors do, so that the directory changes.
    file.write_text(text)
    assert list_paths(memory.recall("dark mode editors", exclude=injected_ids)) == [path]


def test_standing_context_has_owner_facts_and_index(open_memory):
    with open_memory() as memory:
        assert memory.standing_context() == Recalled()
        memory.remember("Always answer in British English", scope="user")
        memory.remember("Always sign the commits", scope="user", trust="agent")
        found = memory.standing_context()
        assert (found.error, len(found.entries)) == (None, 1)
        instructions, data = found.text.split("<<memory ")
        assert "\n- Always answer in British English\n" in instructions
        assert ("sign" not in found.text, "Also stored: user: " in data) == (True, True)
        assert found.tokens == -(-len(found.text.encode()) // 3)
        assert memory.standing_context(found.tokens - 1).entries == ()
        assert memory.standing_context(0) == Recalled()
        for wrong in (-1, 1.5, "5", True):
            with pytest.raises(BadArguments, match="invalid budget"):
                memory.standing_context(wrong)


@pytest.mark.parametrize(
    ("line", "maximum"),
    [("", 1_500), ("standing_tokens = 300", 300), ('standing = "off"\nstanding_tokens = 300', 1_500)],
)
def test_standing_context_takes_tokens_of_settings(open_memory, tmp_path, line, maximum):
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "config.toml").write_text(f"{line}\n")
    with open_memory() as memory:
        for number in range(30):
            write_file(
                memory.context.roots["user"].trusted_path,
                f"rule{number}.md",
                f"Always answer question {'x' * 300} in style {number}\n",
            )
        assert 0.7 * maximum < memory.standing_context().tokens <= maximum


def test_async_standing_context_is_that_of_the_library(open_memory):
    async def run(memory):
        return await muniment.AsyncMemory(memory).standing_context(500)

    with open_memory() as memory:
        memory.remember("Always answer in British English", scope="user")
        assert asyncio.run(run(memory)) == memory.standing_context(500)


def test_closed_memory_leaves_no_thread_and_recalls_nothing(open_memory):
    before = set(threading.enumerate())
    with open_memory() as memory, memory.conversation() as conversation:
        memory.remember(DARK)
        conversation.on_user_turn("dark mode editors")
    assert set(threading.enumerate()) - before == set()
    assert memory.recall("dark mode editors").error is not None


def test_model_selects_entries_if_requested(open_memory, tmp_path):
    roots = make_roots(tmp_path)
    for name, text in {"one.md": "at night", "two.md": "on trains"}.items():
        write_file(roots["user"], name, f"Dark mode in the editor, {text}\n")
    answers = [
        reply_with_text('{"read": ["c2"]}'),
        ModelError("gone"),
        reply_with_text('{"read": ["c9"]}'),
        reply_with_text('{"read": []}'),
    ]
    with open_memory(roots=roots, model=(model := ScriptedModel(answers))) as memory:
        every = list_paths(memory.recall("dark mode editor"))
        assert set(every) == {"user/one.md", "user/two.md"}
        for choose in (True, False):
            with memory.conversation(choose=choose) as conversation:
                assert (conversation.session._choose is not None) is choose
        assert model.requests == []
        results = [list_paths(memory.recall("dark mode editor", choose=True)) for _ in answers]
        # Its selection comes first and nothing is dropped; a failed, invalid or empty selection has no
        # effect.
        assert (results, len(model.requests)) == ([every[::-1], every, every, every], len(answers))


def test_subagent_searches_and_submits_fact(memory):
    memory.remember(STAGING)
    submitted, search = [], {"query": "staging postgres"}
    subagents, alone = memory.subagent(lambda fact: submitted.append(fact) or "t1"), memory.subagent()
    names = [[tool["function"]["name"] for tool in each.tools] for each in (subagents, alone)]
    assert names == [["search_memory", "remember_this"], ["search_memory"]]
    assert "pgbouncer" in subagents.call("search_memory", json.dumps(search))
    assert (subagents.call("remember_this", {"fact": "x"}), submitted) == ("submitted as task t1", ["x"])


def test_conversation_resumes_from_saved_state(memory):
    memory.remember(STAGING)
    messages = [{"role": "user", "content": "Where is the moon?"}]
    with memory.conversation() as conversation:
        assert "pgbouncer" in conversation.before_turn(messages)[0]["content"], "the project tier"
        state = json.loads(json.dumps(conversation.as_json()))
    with memory.conversation(state=state) as conversation:
        assert conversation.before_turn(messages) == messages


# -- outside a repository (ADR 0032)


@pytest.fixture
def here(tmp_path, monkeypatch, home):
    """A working directory outside any repository."""
    (directory := tmp_path / "here").mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("MUNIMENT_HOME", str(home))
    return directory


def remember_scopes(*facts, **options):
    with muniment.open(**options) as memory:
        return [memory.remember(fact).touched_scopes for fact in facts]


@pytest.mark.usefixtures("here")
def test_fact_outside_repository_is_stored_in_user_scope(tmp_path):
    assert remember_scopes(PRIVATE, PROJECT) == [("user",), ("user",)]
    assert not (tmp_path / "home" / "projects").exists()
    with muniment.open() as memory, pytest.raises(errors.InvalidScope, match="not inside a repository"):
        memory.remember(PROJECT, scope="project")
    result = run_in_process(["remember", "--scope", "project", PROJECT], {})
    assert (result.exit_code, "pass --workspace DIR" in result.stderr) == (1, True)


@pytest.mark.usefixtures("here")
def test_explicit_workspace_has_persistent_project():
    assert remember_scopes(PROJECT, workspace=".") == [("project",)]
    with muniment.open() as memory:
        assert memory.recall("which workspaces does the project use").entries[0].path.startswith("project/")
    result = run_in_process(["remember", "--workspace", ".", PROJECT], {})
    assert (result.exit_code, "unchanged" in result.output.lower() or "project" in result.output) == (0, True)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_fact_about_repository_is_stored_in_project_scope(here, make):
    make(here / ".git")
    assert remember_scopes(PROJECT) == [("project",)]


@pytest.mark.usefixtures("here")
def test_policy_without_user_scope_always_has_project(tmp_path):
    (team := tmp_path / "team").mkdir(mode=0o700)
    with muniment.open(policy="team", roots={"team": team}) as memory:
        assert set(memory.context.roots) == {"project", "team"}


# -- the package


def test_package_lists_only_its_public_names():
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


def test_import_and_open_load_no_heavy_modules(workspace, home, tmp_path):
    (here := tmp_path / "here").mkdir()
    command = [sys.executable, "-c", IMPORTING, str(workspace), str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=here, timeout=30)
    assert (done.stdout, list(here.iterdir())) == ("set() []\nset()\nset()\n", [])


def test_requests_accept_one_positional_argument():
    assert (ForgetRequest("a").query, DreamRequest("user").scope) == ("a", "user")
    for request_type in ForgetRequest, DreamRequest:
        with pytest.raises(TypeError):
            request_type("user", True)
