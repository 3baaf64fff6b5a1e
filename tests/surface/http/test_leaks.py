"""Where what was sent ends up: words that stand nowhere else are looked for in every sink and file."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from contextlib import closing

import pytest

from kit.content.secret_values import filled
from kit.daemon.process import BASE, HeldModel, path_of, serving
from kit.daemon.raw import running
from muniment.daemon import service
from muniment.daemon.contract import HTTP, TASK
from muniment.lane import Ended, Lane, NewTask, Originator
from muniment.store.state import State
from muniment.testing.minds import AskForCalls, Say, perfect
from units.content.test_secrets import RULES

NAMES = """fact query ref key client token path host field value origin words escape junk method parameter
    target cursor prefer etag scope digest message excluded"""
WORDS = {name: f"canary-{name}-7f3a" for name in NAMES.split()}
FACT = f"The user prefers, on every screen of every machine in every office, the editor {WORDS['fact']}"
MAY_HOLD = {"fact": {"change"}, "ref": {"record"}}
"""Tables in which a word may stand once all tasks are over: history; on record, where a fact came from."""


def said(text):
    """The names of the words that a text says."""
    return [name for name, word in WORDS.items() if word.lower() in text.lower()]


def requests(daemon, client):
    """Requests that say every word, most of them where it does not belong."""
    word, ask = WORDS, daemon.ask

    def post(path, body, **more):
        return daemon.post(f"{BASE}/{path}", body, **more)

    content = {"content": word["value"]}
    yield post("remember", {**content, word["field"]: word["value"]})
    yield post("remember", {**content, "contextMode": word["value"]})
    yield post("remember", {**content, "scope": word["scope"]})
    yield post("remember", {**content, "source": {"trust": word["value"]}})
    yield post("remember", {"content": word["value"] * 6_000})
    yield post("remember", f'{{"content": "{word["junk"]}'.encode())
    yield post("remember", word["junk"].encode() * 40_000)
    yield post("remember", content, content_type=f"text/{word['junk']}")
    yield post("remember", content, client=word["client"])
    yield post("remember", content, idempotency_key=f"{word['key']} x")
    yield post("forget", {"query": word["query"], "scope": word["scope"]})
    yield post("recall", {"query": word["message"], "limit": word["value"]})
    yield post("recall", {"query": word["message"], word["field"]: word["excluded"]})
    yield post("recall", {"query": [word["message"]], "exclude": word["excluded"]}, token=client)
    origin = f"http://{word['origin']}"
    for name, each in ("token", word["token"]), ("host", word["host"]), ("origin", origin):
        yield ask("GET", "/healthz", **{name: each})
    for path in "/", "/workspaces/", "/workspaces/%2f":
        yield ask("GET", f"{path}{word['path']}{'/memory/tasks' * (len(path) > 1)}")
    for kind in ("remember", "forget", "dream"):
        for method in ("GET", "DELETE"):
            more = {"prefer": word["prefer"], "if_none_match": word["etag"]}
            yield ask(method, f"{BASE}/{kind}/{word['path']}", **more)
    yield ask(word["method"].upper(), "/healthz")
    query = f"tasks?status={word['parameter']}&cursor={word['cursor']}"
    for path in query, f"policy/explain?verb={word['parameter']}&path=x", f"review/{word['path']}":
        yield ask("GET", f"{BASE}/{path}")
    yield post(f"review/{word['path']}/approve", {"digest": word["digest"]})
    yield post(f"review/{word['path']}/reject", {})
    yield post("undo", {"taskId": word["target"]})
    yield post("erase", {"target": word["target"]})
    yield post("erase", {"target": f"user/{word['target']}.md", "yes": True})
    yield post("erase", {"target": f"../{word['target']}"}, token=client)


def chatty(request):
    """Does the job, and says a word about it."""
    thought = perfect(request)
    return Say(f"{thought.text} {WORDS['words']}") if isinstance(thought, Say) else thought


ESCAPE = [("write_file", {"path": f"../{WORDS['escape']}.md", "content": WORDS["words"]})]
FAILING = {"remember_path_escape": AskForCalls(ESCAPE), "remember_no_update": Say(f"Saved: {WORDS['words']}")}


class Told:
    """A daemon to which every word was said, and what each sink holds of what it said of that."""

    def __init__(self, daemon, model):
        self.daemon, self.client = daemon, daemon.new_token("editor", "editor-1")
        who = {"token": self.client, "client": "editor-1"}
        self.task = daemon.remember(FACT, **who, source={"ref": WORDS["ref"]})
        assert daemon.wait(self.task)["status"] == "completed"
        daemon.wait(daemon.submit("forget", {"query": WORDS["query"]}, idempotency_key=WORDS["key"]))
        failed = []
        for code, thought in FAILING.items():
            model.mind = lambda _, thought=thought: thought
            failed.append(daemon.done("remember", {"content": f"Another, {WORDS['fact']}, {code}"}))
            assert failed[-1]["error"]["code"] == code
        seen = {"query": f"What editor? {WORDS['message']}", "exclude": [f"user/{WORDS['excluded']}.md@0"]}
        assert said(daemon.post(f"{BASE}/recall", seen, **who).text) == ["fact"]
        self.answers = [*requests(daemon, self.client)]
        self.answers += [daemon.get(path_of(each["taskId"])) for each in failed]
        with daemon.follow(cursor=daemon.cursor(0)) as follower:
            last = failed[-1]["taskId"]
            self.events = follower.until(
                lambda each: (each.data["taskId"], each.data.get("status")) == (last, "failed")
            )
        self.sinks = {
            "log": daemon.log,
            "address": (daemon.home / "state" / "daemon.json").read_text(),
            "problems": "\n".join(f"{each.status_code} {each.headers} {each.text}" for each in self.answers),
            "events": "\n".join(json.dumps(event.document) for event in self.events),
            "metrics": daemon.get("/metrics").text,
            "description": daemon.get("/openapi.json").text + daemon.get("/capabilities").text,
        }


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    with HeldModel(chatty) as model, serving(tmp_path_factory.mktemp("leaks"), *model.flags) as daemon:
        yield Told(daemon, model)


def test_nothing_that_was_sent_is_repeated_nor_a_token_nor_a_directory_told(told, subtests):
    daemon = told.daemon
    directories = [str(path) for path in (daemon.base, daemon.home, daemon.work, daemon.root())]
    for name, held in told.sinks.items():
        with subtests.test(name):
            assert held
            assert said(held) == []
            assert daemon.token not in held
            assert told.client not in held
            if name not in {"log", "address"}:
                assert not [each for each in (*directories, "site-packages") if each in held]


def test_what_was_sent_was_heard(told):
    """Otherwise nothing above shows anything."""
    assert any(WORDS["fact"] in text for text in told.daemon.files().values())
    done = told.daemon.get(path_of(told.task)).text
    assert "saved user/" in done
    assert WORDS["words"] not in done
    assert {400, 401, 403, 404, 405, 413, 415, 421} <= {answer.status_code for answer in told.answers}
    assert [event.type for event in told.events].count("memory_changed") == 1


def test_every_line_of_the_log_is_json_and_every_problem_is_the_sentence_of_its_code(told):
    lines = [json.loads(line) for line in told.sinks["log"].splitlines()]
    assert len(lines) > 5
    assert all(line["event"] != "request_broke" for line in lines)
    for answer in told.answers:
        found = answer.json()
        if answer.status_code < 400:
            error = found["error"]
            assert error is None or error["message"] == (TASK.get(error["code"]) or HTTP[error["code"]][1])
            continue
        status, sentence = HTTP[found["code"]]
        assert (answer.status_code, found["error"], found["title"]) == (status, sentence, sentence)
        assert set(found) <= {"type", "title", "status", "error", "code", "reason"}
        assert re.fullmatch(r"[a-z_]+", found.get("reason", "x"))


def test_of_what_is_over_the_ledger_holds_history_and_results_alone(told):
    ledger = told.daemon.home / "state" / "ledger.db"
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: repr(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in names}
    assert {"event", "task", "token", "record", "change"} <= set(found)
    for name, word in WORDS.items():
        assert {table for table, rows in found.items() if word in rows} <= MAY_HOLD.get(name, set()), name
    assert WORDS["fact"] in found["change"]


def test_everything_in_the_state_directory_is_the_owners_alone_and_the_token_stands_there_alone(told):
    base, state = told.daemon.base, told.daemon.home / "state"
    for path in (state, *state.rglob("*")):
        assert path.lstat().st_mode & 0o077 == 0, path
    assert (base / "daemon.sock").lstat().st_mode & 0o777 == 0o600
    files = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    assert [path for path, data in files.items() if told.daemon.token.encode() in data] == [state / "token"]
    assert [path for path, data in files.items() if told.client.encode() in data] == []


def test_a_policy_that_cannot_be_read_is_not_quoted_to_clients(tmp_path):
    policy = tmp_path / f"{WORDS['path']}.toml"
    policy.write_text(f"name = '{WORDS['value']}'\n[[{WORDS['junk']}]]\n")
    with running(tmp_path, policy=policy) as daemon:
        answers = [
            daemon.post(f"{BASE}/remember", {"content": FACT}),
            *(daemon.get(path) for path in ("/readyz", f"{BASE}/review", "/metrics")),
            daemon.get(f"{BASE}/policy/explain?verb=read&path=user/a.md"),
        ]
        assert [answer.status_code for answer in answers] == [409, 503, 409, 200, 409]
        assert answers[0].json()["reason"] == "policy_invalid"
        assert said("\n".join(f"{answer.headers} {answer.text}" for answer in answers)) == []
        assert said("\n".join(record.getMessage() for record in daemon.records)) == []


@pytest.mark.threat("T-LEAK-04", control="foreign_logs")
def test_what_other_libraries_log_is_told_by_level_and_name_alone(capsys):
    ours, root = logging.getLogger("muniment"), logging.getLogger()
    kept = root.handlers[:], root.level, ours.handlers[:], ours.level
    try:
        service.configure_logs()
        foreign = logging.getLogger("foreign")
        try:
            int(WORDS["value"])
        except ValueError:
            foreign.exception("broke: %s", WORDS["junk"])
        foreign.warning(WORDS["junk"])
        foreign.info(WORDS["junk"])
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
    assert said(json.dumps(lines)) == []


# -- files -----------------------------------------------------------------------------------------------

OWNER = Originator("owner")
SECRETS = {rule["id"]: filled(rule["positive"][-1], 11) for rule in RULES}
WIFI = filled("The deploy token is ghp_{a62:36}", 3)


def pieces(text):
    """What is random of a text: runs of letters and digits."""
    runs = "".join(char if char.isalnum() else " " for char in text).split()
    cut = {run[at : at + 16] for run in runs if len(run) >= 16 for at in range(0, len(run) - 15, 8)}
    return {each.encode() for each in cut if any(map(str.isdigit, each)) and any(map(str.isalpha, each))}


WANTED = {piece for text in (WIFI, *SECRETS.values()) for piece in pieces(text)}


def holding(home, wanted):
    """The files beneath a home that hold one of some pieces, in their bytes or their name."""
    return [
        path
        for path in home.rglob("*")
        for data in [path.read_bytes() if path.is_file() else b""]
        if any(piece in data or piece in bytes(path) for piece in wanted)
    ]


@pytest.mark.threat("T-LEAK-11", control="withheld_secrets")
def test_not_even_while_its_task_waits_is_a_secret_on_the_disk(tmp_path):
    assert len(WANTED) > len(SECRETS)
    with State(tmp_path / "state") as state:
        lane = Lane(state, "w")
        for number, secret in enumerate(SECRETS.values()):
            lane.submit(NewTask("remember", {"content": secret}, OWNER, {}, ref=WIFI))
            if number % 10 == 9:
                while (begun := lane.claim()) is not None:
                    lane.finish(begun, Ended("failed", error={"code": "remember_refused"}))
        assert holding(tmp_path, WANTED) == []


@pytest.mark.slow
def test_a_refused_secret_stands_in_no_file_whatever_kind_it_is_of(alone):
    source, codes = {"trust": "owner", "ref": WIFI}, set()
    for secret in SECRETS.values():
        task = alone.done("remember", {"content": f"Keep this: {secret}", "source": source})
        codes.add(task["error"]["code"])
    assert codes == {"remember_refused"}
    assert holding(alone.home, WANTED) == []
    again = [alone.post(f"{BASE}/remember", {"content": WIFI}, idempotency_key="k") for _ in range(2)]
    assert again[0].json()["taskId"] == again[1].json()["taskId"]
    other = alone.post(f"{BASE}/remember", {"content": WIFI.swapcase()}, idempotency_key="k")
    assert other.status_code == 422
    assert holding(alone.home, WANTED) == []
    alone.run(alone.daemon.stop())
    assert holding(alone.home, WANTED) == []


@pytest.mark.threat("T-LEAK-11", control="emptied_logs")
@pytest.mark.threat("T-LEAK-11", control="overwritten_pages")
def test_of_what_was_asked_without_effect_nothing_is_left_once_no_task_waits(tmp_path):
    """Long texts have pages of their own, short ones share one; some are gone while others still wait."""
    with State(tmp_path / "state") as state:
        lane = Lane(state, "w")
        texts = [f"{number:03}-wombatquartz-{number * 7919 % 1000:03}" for number in range(60)]
        for number, words in enumerate(texts):
            asked = NewTask("forget", {"query": f"{words} " * (1, 3, 90, 900)[number % 4]}, OWNER, {})
            lane.submit(asked)
            if number % 3 == 2:
                while (begun := lane.claim()) is not None:
                    lane.finish(begun, Ended("failed", error={"code": "forget_failed"}))
        assert lane.tidy()
        assert holding(tmp_path, [words.encode() for words in texts]) == []


@pytest.mark.threat("T-LEAK-12", control="scrubbed_ledger")
def test_an_erasure_is_told_before_it_is_done_and_then_no_byte_beneath_the_home_says_it(scripted, model):
    words = ("zebrafinch quokkasong", "marmosetglow dugongmoon", "axolotlrain pangolinwind")
    wanted = {word.encode() for each in words for word in (*each.split(), *each.title().split())}
    who = {"token": scripted.add("editor", "editor-1", trust="owner"), "client": "editor-1"}
    facts = [f"The user's dream of {each} is called {each.title()} at home" for each in words]
    tasks = [scripted.done("remember", {"content": fact}, **who) for fact in facts]
    for fact in facts:
        scripted.post(f"{BASE}/recall", {"query": fact})
    scripted.done("forget", {"query": words[1]})
    scripted.done("dream", {})
    model.hold()
    asked = len(model.server.requests)
    scripted.remember("The user likes pyramids")
    waiting = scripted.remember(facts[0])  # It ends, before it is begun, with what it holds.
    model.wait_until_asked(asked + 1)
    assert len(holding(scripted.home, wanted)) > 3
    for number, task in enumerate(tasks):
        target = {"target": task["taskId"]}
        plan = scripted.post(f"{BASE}/erase", target).json()
        assert (plan["status"], plan["files"]) == ("preview", task["result"]["filesTouched"])
        receipt = scripted.post(f"{BASE}/erase", {**target, "yes": True}).json()
        assert receipt["status"] == "erased"
        assert receipt["laneTasks"] >= 1 + (number == 0)
        assert words[number].split()[0] not in str(receipt)
        told = scripted.look(task["taskId"])
        assert (told["status"], told["error"]["code"], told["result"]) == ("failed", "erased", None)
    told = scripted.look(waiting)
    assert (told["status"], told["error"]["code"]) == ("failed", "erased")
    model.release()
    scripted.done("dream", {})
    assert holding(scripted.home, wanted) == []
    scripted.run(scripted.daemon.stop())
    assert holding(scripted.home, wanted) == []
