"""Where what was sent ends up: words that stand nowhere else are sent, and looked for in every sink."""

from __future__ import annotations

import json
import logging
import re
import sqlite3

import pytest

from kit.daemon.process import BASE, HeldModel, path_of, serving
from muniment.daemon import service
from muniment.daemon.contract import HTTP, TASK
from muniment.testing.minds import AskForCalls, Say, perfect

SECRETS = {
    name: f"canary-{name}-7f3a"
    for name in (
        *(
            "fact",
            "query",
            "ref",
            "key",
            "client",
            "token",
            "path",
            "host",
            "field",
            "value",
            "origin",
            "agent",
        ),
        *(
            "words",
            "escape",
            "junk",
            "method",
            "parameter",
            "target",
            "cursor",
            "prefer",
            "etag",
            "scope",
            "digest",
            "message",
            "excluded",
        ),
    )
}
FACT = f"The user prefers, on every screen of every machine in every office, the editor {SECRETS['fact']}"
MAY_HOLD = {"fact": {"change"}, "ref": {"record"}}
"""Tables in which a word may stand once all tasks are over: history; on record, where a fact came from."""

EVENTS = re.compile(r'"type": "(task|memory_changed)"')


def requests(daemon, client):
    """Requests that say every word, most of them where it does not belong."""
    word = SECRETS
    ask, post = daemon.ask, daemon.post
    yield post(f"{BASE}/remember", {"content": word["value"], word["field"]: word["value"]})
    yield post(f"{BASE}/remember", {"content": word["value"], "contextMode": word["value"]})
    yield post(f"{BASE}/remember", {"content": word["value"], "scope": word["scope"]})
    yield post(f"{BASE}/remember", {"content": word["value"], "source": {"trust": word["value"]}})
    yield post(f"{BASE}/remember", {"content": word["value"] * 6_000})
    yield post(f"{BASE}/remember", f'{{"content": "{word["junk"]}'.encode())
    yield post(f"{BASE}/remember", word["junk"].encode() * 40_000)
    yield post(f"{BASE}/remember", {"content": word["value"]}, content_type=f"text/{word['junk']}")
    yield post(f"{BASE}/remember", {"content": word["value"]}, client=word["client"])
    yield post(f"{BASE}/remember", {"content": word["value"]}, idempotency_key=f"{word['key']} x")
    yield post(f"{BASE}/forget", {"query": word["query"], "scope": word["scope"]})
    yield post(f"{BASE}/recall", {"query": word["message"], "limit": word["value"]})
    yield post(f"{BASE}/recall", {"query": word["message"], word["field"]: word["excluded"]})
    yield post(f"{BASE}/recall", {"query": [word["message"]], "exclude": word["excluded"]}, token=client)
    yield ask("GET", "/healthz", token=word["token"])
    yield ask("GET", "/healthz", host=word["host"])
    yield ask("GET", "/healthz", origin=f"http://{word['origin']}")
    yield ask("GET", f"/{word['path']}")
    yield ask("GET", f"/workspaces/{word['path']}/memory/tasks")
    yield ask("GET", f"/workspaces/%2f{word['path']}/memory/tasks")
    for kind in ("remember", "forget", "dream"):
        for method in ("GET", "DELETE"):
            yield ask(
                method, f"{BASE}/{kind}/{word['path']}", prefer=word["prefer"], if_none_match=word["etag"]
            )
    yield ask(word["method"].upper(), "/healthz")
    yield ask("GET", f"{BASE}/tasks?status={word['parameter']}&cursor={word['cursor']}")
    yield ask("GET", f"{BASE}/policy/explain?verb={word['parameter']}&path=x")
    yield ask("GET", f"{BASE}/review/{word['path']}")
    yield post(f"{BASE}/review/{word['path']}/approve", {"digest": word["digest"]})
    yield post(f"{BASE}/review/{word['path']}/reject", {})
    yield post(f"{BASE}/undo", {"taskId": word["target"]})
    yield post(f"{BASE}/erase", {"target": word["target"]})
    yield post(f"{BASE}/erase", {"target": f"user/{word['target']}.md", "yes": True})
    yield post(f"{BASE}/erase", {"target": f"../{word['target']}"}, token=client)


class Told:
    """A daemon to which every word was said, and what it said of that."""

    def __init__(self, daemon, client, answers, task, events):
        self.daemon, self.client, self.answers, self.task, self.events = daemon, client, answers, task, events

    def __call__(self, name):
        """Everything that a sink holds."""
        return getattr(self, f"_{name}")()

    def _log(self):
        return self.daemon.log

    def _problems(self):
        return "\n".join(f"{answer.status_code} {answer.headers} {answer.text}" for answer in self.answers)

    def _events(self):
        return self.events

    def _metrics(self):
        return self.daemon.get("/metrics").text

    def _description(self):
        return self.daemon.get("/openapi.json").text + self.daemon.get("/capabilities").text

    def _address(self):
        return (self.daemon.home / "state" / "daemon.json").read_text()


@pytest.fixture(scope="module")
def told(tmp_path_factory, model_of_module):
    terms = [*model_of_module.flags, "--on-model-failure=fail"]
    with serving(tmp_path_factory.mktemp("leaks"), *terms) as daemon:
        client = daemon.new_token("editor", "editor-1")
        task = daemon.remember(FACT, token=client, client="editor-1", source={"ref": SECRETS["ref"]})
        assert daemon.wait(task)["status"] == "completed"
        daemon.wait(daemon.submit("forget", {"query": SECRETS["query"]}, idempotency_key=SECRETS["key"]))
        ended = []
        for mind in (escaping, idle):
            model_of_module.mind = mind
            ended.append(
                daemon.wait(daemon.remember(f"Another fact, {SECRETS['fact']}, for {mind.__name__}"))
            )
        assert [each["error"]["code"] for each in ended] == ["remember_path_escape", "remember_no_update"]
        seen = {
            "query": f"What editor? {SECRETS['message']}",
            "exclude": [f"user/{SECRETS['excluded']}.md@0"],
        }
        shown = daemon.post(f"{BASE}/recall", seen, token=client, client="editor-1").text
        assert [name for name, word in SECRETS.items() if word in shown] == ["fact"]
        answers = [
            *requests(daemon, client),
            daemon.get(path_of(ended[0]["taskId"])),
            daemon.get(path_of(ended[1]["taskId"])),
        ]
        with daemon.follow(cursor=daemon.cursor(0)) as follower:
            last = ended[-1]["taskId"]
            events = follower.until(
                lambda event: event.data["taskId"] == last and event.data["status"] == "failed"
            )
        yield Told(daemon, client, answers, task, "\n".join(json.dumps(event.document) for event in events))


@pytest.fixture(scope="module")
def model_of_module():
    with HeldModel(chatty) as held:
        yield held


def chatty(request):
    """Does the job, and says a word about it."""
    thought = perfect(request)
    return Say(f"{thought.text} {SECRETS['words']}") if isinstance(thought, Say) else thought


def escaping(_request):
    """Writes elsewhere."""
    return AskForCalls([("write_file", {"path": f"../{SECRETS['escape']}.md", "content": SECRETS["words"]})])


def idle(_request):
    """Says that it is done."""
    return Say(f"Saved: {SECRETS['words']}")


SINKS = ("log", "problems", "events", "metrics", "description", "address")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("sink", SINKS)
def test_nothing_that_was_sent_is_repeated(told, sink):
    held = told(sink)
    assert held
    assert [name for name, word in SECRETS.items() if word.lower() in held.lower()] == []


@pytest.mark.parametrize("sink", SINKS)
def test_no_token_is_told(told, sink):
    for token in (told.daemon.token, told.client):
        assert token not in told(sink)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("sink", ["problems", "events", "metrics", "description"])
def test_no_directory_of_this_machine_is_told(told, sink):
    held = told(sink)
    for directory in (told.daemon.base, told.daemon.home, told.daemon.work, told.daemon.root()):
        assert str(directory) not in held
    assert "site-packages" not in held


def test_what_was_sent_was_heard(told):
    """Otherwise nothing above shows anything."""
    assert any(SECRETS["fact"] in text for text in told.daemon.files().values())
    done = told.daemon.get(path_of(told.task)).text
    assert "saved user/" in done
    assert SECRETS["words"] not in done
    statuses = {answer.status_code for answer in told.answers}
    assert {400, 401, 403, 404, 405, 413, 415, 421} <= statuses
    assert EVENTS.findall(told("events")).count("memory_changed") == 1


def test_every_line_of_the_log_is_json_and_none_is_a_traceback(told):
    lines = [json.loads(line) for line in told.daemon.log.splitlines()]
    assert len(lines) > 5
    assert all("event" in line for line in lines)
    assert not [line for line in lines if line["event"] == "request_broke"]


def test_every_problem_has_the_sentence_of_its_code_and_nothing_else(told):
    for answer in told.answers:
        if answer.status_code < 400:
            error = answer.json()["error"]
            if error is not None:
                assert error["message"] == (TASK.get(error["code"]) or HTTP[error["code"]][1])
            continue
        found = answer.json()
        status, sentence = HTTP[found["code"]]
        assert (answer.status_code, found["error"], found["title"]) == (status, sentence, sentence)
        assert set(found) <= {"type", "title", "status", "error", "code", "reason"}
        assert re.fullmatch(r"[a-z_]+", found.get("reason", "x"))


def tables(ledger):
    """Every table's rows as text."""
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: repr(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in names}
    connection.close()
    return found


def test_of_what_is_over_the_ledger_holds_history_and_results_alone(told):
    found = tables(told.daemon.home / "state" / "ledger.db")
    assert {"event", "task", "token", "record", "change"} <= set(found)
    for name, word in SECRETS.items():
        holding = {table for table, rows in found.items() if word in rows}
        assert holding <= MAY_HOLD.get(name, set()), name
    assert SECRETS["fact"] in found["change"]


def test_tokens_stand_in_one_file_alone_which_is_the_owners(told):
    state = told.daemon.home / "state"
    files = {path: path.read_bytes() for path in told.daemon.base.rglob("*") if path.is_file()}
    owners = [path for path, data in files.items() if told.daemon.token.encode() in data]
    assert owners == [state / "token"]
    assert (state / "token").stat().st_mode & 0o777 == 0o600
    assert [path for path, data in files.items() if told.client.encode() in data] == []


def test_everything_in_the_state_directory_is_the_owners_alone(told):
    for path in (told.daemon.home / "state", *(told.daemon.home / "state").rglob("*")):
        assert path.lstat().st_mode & 0o077 == 0, path
    assert (told.daemon.base / "daemon.sock").lstat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_policy_that_cannot_be_read_is_not_quoted_to_clients(start_daemon, tmp_path):
    policy = tmp_path / f"{SECRETS['path']}.toml"
    policy.write_text(f"name = '{SECRETS['value']}'\n[[{SECRETS['junk']}]]\n")
    daemon = start_daemon("--policy", str(policy))
    answers = [
        daemon.post(f"{BASE}/remember", {"content": FACT}),
        daemon.get("/readyz"),
        daemon.get(f"{BASE}/review"),
        daemon.get(f"{BASE}/policy/explain?verb=read&path=user/a.md"),
        daemon.get("/metrics"),
    ]
    assert [answer.status_code for answer in answers] == [409, 503, 409, 409, 200]
    assert answers[0].json()["reason"] == "policy_invalid"
    held = "\n".join(f"{answer.headers} {answer.text}" for answer in answers)
    for name in ("path", "value", "junk", "fact"):
        assert SECRETS[name] not in held
    # The person at the terminal is told, in a line that is no record.
    records = [json.loads(line) for line in daemon.log.splitlines() if line.startswith("{")]
    assert not [name for name, word in SECRETS.items() if word in json.dumps(records)]


@pytest.mark.threat("T-LEAK-04", control="foreign_logs")
def test_what_other_libraries_log_is_told_by_level_and_name_alone(capsys):
    ours, root = logging.getLogger("muniment"), logging.getLogger()
    kept = root.handlers[:], root.level, ours.handlers[:], ours.level
    try:
        service.configure_logs()
        try:
            int(SECRETS["value"])
        except ValueError:
            logging.getLogger("foreign").exception("broke: %s", SECRETS["junk"])
        logging.getLogger("foreign").warning(SECRETS["junk"])
        logging.getLogger("foreign").info(SECRETS["junk"])
    finally:
        root.handlers[:], root.level, ours.handlers[:], ours.level = kept
        root.setLevel(kept[1])
        ours.setLevel(kept[3])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"], line["logger"]) for line in lines] == [
        ("foreign_log", "error", "foreign"),
        ("foreign_log", "warning", "foreign"),
    ]
    assert lines[0]["problem"] == "<class 'ValueError'>"
    assert not [name for name, word in SECRETS.items() if word in json.dumps(lines)]
