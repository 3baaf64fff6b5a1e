"""The examples and the snippets of pages work as documented."""

import re
import sys
from pathlib import Path

import pytest

from kit.agent.simulated_models import build_answerer, remember_fact
from kit.locations import REPOSITORY
from kit.memories import WORKER_CONFINEMENT
from kit.shell import find_code_blocks, get_output, read_page
from muniment.testing.chat_server import ChatServer, make_tool_call, text_response, tool_calls_response

EXAMPLES = REPOSITORY / "examples"
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "threat-model/README.md", "policies/README.md")
DARK = "user/editor/prefers-dark-mode-all-editors.md"


def run_example(name, tmp_path, *arguments, stdin=None):
    command = (sys.executable, EXAMPLES / name, *arguments)
    return get_output(*command, home=tmp_path, stdin=stdin, TMPDIR=str(tmp_path))


def test_embed_saves_one_fact_and_stops_the_hostile_run(tmp_path):
    assert run_example("embed.py", tmp_path).splitlines() == [
        "completed: ('project/deploy/day.md',) in 3 turns",
        *("stopped: remember_path_escape, via dotdot, in write_file", "['MEMORY.md', 'day.md']"),
    ]


@pytest.mark.slow
def test_remember_once_prints_the_entry_and_the_index(tmp_path):
    output = run_example("remember_once.py", tmp_path)
    assert output.startswith("completed: user/editor/")
    assert f"decided by rules, enforcement {WORKER_CONFINEMENT}" in output
    assert "The user prefers dark mode in all editors" in output
    assert "# Memory index" in output


@pytest.mark.slow
def test_embed_daemon_stores_repeated_fact_once(tmp_path):
    assert run_example("embed_daemon.py", tmp_path).splitlines() == [
        *("serving on the loopback: True", "one task: True, replayed: True"),
        f"saved: ('project/deploy/deploy.md',), enforcement {WORKER_CONFINEMENT}",
        *("event: memory_changed in ['project']", "connection file removed: True"),
    ]


@pytest.mark.slow
def test_live_model_prints_a_row_for_each_fact(tmp_path):
    with ChatServer(build_answerer(remember_fact)) as server:
        head, *rows, last = run_example("live_model.py", tmp_path, server.base_url, "perfect").splitlines()
    assert head.split() == ["turns", "tokens", "in/out", "seconds", "malformed", "outcome"]
    assert len(rows) == 12
    assert all(re.match(r" +3 +300/30 +\d+\.\d\d +0  (saved|already known:) user/", row) for row in rows)
    assert "already known" in rows[-1]
    assert last.startswith("12 of 12 filed, ")


@pytest.mark.slow
def test_daemon_and_client_remembers_follows_and_forgets(tmp_path):
    assert run_example("daemon_and_client.py", tmp_path).splitlines() == [
        *(f"saved: {DARK}, decided by rules", "not saved: pending_review", f"forgot: {DARK}"),
        *("event: workspace_memory_remember touched user", "event: workspace_memory_forget touched user"),
    ]


@pytest.mark.slow
def test_chat_with_memory_injects_earlier_fact(tmp_path):
    fact = "Staging runs on Postgres 16 behind pgbouncer"
    answers = [
        *(tool_calls_response(make_tool_call("remember_this", {"fact": fact})), text_response("Noted.")),
        tool_calls_response(make_tool_call("remember_this", {"fact": "The user likes tea"}, "call-2")),
        text_response("On Postgres 16."),
    ]
    with ChatServer(answers) as server:
        user_input = f"Keep in mind: {fact}\nWhich Postgres does staging run?\n"
        output = run_example("chat_with_memory.py", tmp_path, server.base_url, "scripted", stdin=user_input)
    assert output == "Noted.\nOn Postgres 16.\n"
    first, *_, last = (request.body["messages"] for request in server.requests)
    assert [message["role"] for message in first] == ["system", "user"]
    (injected,) = (each for each in last if str(each.get("content")).startswith("## Memory"))
    assert fact in injected["content"]
    assert re.search(r"\n- \[agent \d{4}-\d\d-\d\d \w{5}\] ", injected["content"])
    assert last.index(injected) in {5, 8}, "before the second message, or after its tool results"


@pytest.mark.slow
def test_subagent_gets_context_searches_and_submits_fact(tmp_path):
    task, *calls = run_example("subagent.py", tmp_path).split("\n--- ")
    assert task.startswith("## Task\n\nRaise the limit of the staging Postgres\n\n## Key Context")
    assert "Staging runs on Postgres 16 behind pgbouncer" in task
    assert "commit messages" not in task
    found, unmatched, submitted, saved = calls
    assert "prefers short commit messages" in found
    assert unmatched.endswith("No entry matches.")
    assert submitted.endswith("submitted as task task-1")
    assert saved.startswith("saved project/")


@pytest.mark.slow
def test_attack_your_own_tool_finds_check_before_open_flaws(tmp_path):
    lines = (output := run_example("attack_your_own_tool.py", tmp_path)).splitlines()
    by_class = {line.split()[0]: line for line in lines[:5]}
    assert "leaked: hard-read: hard link to an outside inode: only st_nlink tells" in lines
    assert "escaped" in by_class["hardlink"]
    assert "2 held" in by_class["prefix-confusion"]
    assert not re.search("escaped|leaked|hung|crashed", by_class["traversal"])
    assert re.search("escaped|leaked", by_class["race"]), output


@pytest.mark.slow
def test_review_a_policy_shows_shortest_path_with_rule(tmp_path):
    refused = "the rule 'pinned' does not let you modify project/Pinned/a.md; use another name or folder"
    assert run_example("review_a_policy.py", tmp_path).splitlines() == [
        "strict: wider",
        "  create, modify, removal project/z/z/z.md: allow[write-topics] /project/*/*/*.md, line 29",
        *("proved: no-instructions", "broken: one-folder create project/z/z/z.md"),
        f"deny: rule 'pinned'; message to the model: {refused}",
    ]


@pytest.mark.slow
def test_memory_tool_example_writes_rejects_escape_and_undoes(tmp_path):
    _, *lines = run_example("anthropic_memory_tool.py", tmp_path).splitlines()
    assert lines == [
        "tool result: File created successfully at: /memories/user/editor.md",
        "tool result: Path /memories/user/../../.bashrc would escape /memories directory",
        *("model: Noted.", "remembered: user/editor.md, trust agent", "after undo: 0"),
    ]


@pytest.mark.slow
def test_agents_sdk_example_recalls_and_rejects_escape(tmp_path):
    output = run_example("openai_agents_tools.py", tmp_path)
    saved, recalled, preview, refused, instructions, last = output.split("--- ")[1:]
    assert saved == f"remember\nsaved {DARK}\n"
    assert "\n- [agent " in recalled
    assert "call again with digest" in preview
    assert refused.endswith("[path_escape]\n")
    assert instructions.startswith("instructions\nBe brief.\n\n## Memory\n")
    assert instructions.endswith("\n- Always answer in British English\n")
    assert last == "model: Noted.\n"


@pytest.mark.slow
def test_langgraph_example_finds_item_and_undoes_put(tmp_path):
    assert run_example("langgraph_store.py", tmp_path).splitlines() == [
        "('memories', 'ann') drinks: {'text': 'Ann drinks green tea.', 'confidence': 0.9}",
        *("user/memories.ann/drinks.md", "left: ['drinks']"),
    ]


@pytest.mark.slow
def test_langgraph_node_example_adds_memory_once(tmp_path):
    _, standing, first, second = run_example("langgraph_memory_node.py", tmp_path).split("--- ")
    assert standing.startswith("muniment-standing\n## Memory\n")
    assert "\n- Always answer in British English\n" in standing
    assert first == "turn-0\nGood morning\n"
    assert "Postgres 16" in standing  # So the second turn does not repeat it.
    assert second == "turn-1\nWhich Postgres does staging run?\n"


def test_every_example_has_a_test_here_and_two_are_short():
    tested = set(re.findall(r'run_example\("(\w+\.py)"', Path(__file__).read_text()))
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested
    assert len((EXAMPLES / "review_a_policy.py").read_text().splitlines()) <= 80
    assert len((EXAMPLES / "chat_with_memory.py").read_text().splitlines()) < 100


SNIPPETS = [
    each
    for page in (
        "README.md",
        "docs/adapters.md",
        "docs/api.md",
        "docs/library.md",
        "docs/models.md",
    )
    for each in find_code_blocks(read_page(page), "python")
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_python_snippet_of_a_page_runs(snippet, tmp_path):
    for scope in ("user", "project"):
        (tmp_path / "memory" / scope).mkdir(parents=True, mode=0o700)
    get_output(sys.executable, "-c", snippet, home=tmp_path, MUNIMENT_HOME=str(tmp_path / "home"))


def test_first_screen_of_readme_matches_real_output(tmp_path):
    readme = read_page("README.md")
    fact = re.search(r'muniment remember "([^"]+)"', readme)[1]
    saved = get_output("muniment", "remember", fact, home=tmp_path)
    assert f"\n{re.sub('[0-9a-z]{5}[)]$', 'k3f9q)', saved.rstrip())}\n" in readme
    entry = (tmp_path / re.search(r"cat ~/(\S+)", readme)[1]).read_text()
    for line in entry.splitlines():
        assert line.startswith("muniment:") or f"\n{line}\n" in readme


def list_anchors(page):
    """Return the anchors of the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_pages_name_only_files_and_headings_that_exist():
    pages = [REPOSITORY / each for each in PAGES] + sorted((REPOSITORY / "docs").glob("*.md"))
    heads = {each: list_anchors(each) for each in REPOSITORY.rglob("*.md") if ".venv" not in each.parts}
    for page in pages:
        if page.name == "messages.md":  # It quotes source code.
            continue
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target, head in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
            file = page.parent.joinpath(target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            assert not head or head in heads[file], f"{page.name}: {target}#{head}"
