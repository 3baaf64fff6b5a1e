"""Unique words are sent to the daemon and searched in every sink and file."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from contextlib import closing
from itertools import product

import pytest

from kit.agent.dialects import FinishWithText, RequestCalls
from kit.agent.simulated_models import remember_fact
from kit.content.secret_values import fill_example
from kit.server.process import BASE, PausableModel, build_task_path, start_daemon_process
from kit.server.raw import start_local_daemon
from muniment.errors import CODES
from muniment.server import service
from muniment.server.lane import Lane
from muniment.server.lane_tasks import NewTask, TaskOutcome
from muniment.store.state import State
from muniment.store.tasks import Originator
from units.content.test_secrets import RULES

NAMES = """fact query ref key client token path host field value origin words escape junk method parameter
    target cursor prefer etag scope digest message excluded"""
WORDS = {name: f"canary-{name}-7f3a" for name in NAMES.split()}
FACT = f"The user prefers, on every screen of every machine in every office, the editor {WORDS['fact']}"
MAY_HOLD = {"fact": {"change"}, "ref": {"record"}}
"""Tables that may contain a word after all tasks have ended: history, and the record of the origin of a fact.
"""


def find_words(text):
    """Return the names of the words that a text contains."""
    return [name for name, word in WORDS.items() if word.lower() in text.lower()]


def requests(daemon, client):
    """Send every word, mostly in an invalid place, and yield the answers."""
    word, send = WORDS, daemon.send
    content, message, value = {"content": word["value"]}, {"query": word["message"]}, word["value"]
    for path, body, more in (
        *(("remember", {**content, name: value}, {}) for name in (word["field"], "contextMode", "scope")),
        ("remember", {**content, "scope": word["scope"], "source": {"trust": value}}, {}),
        ("remember", {"content": value * 6_000}, {}),
        ("remember", f'{{"content": "{word["junk"]}'.encode(), {}),
        ("remember", word["junk"].encode() * 40_000, {}),
        ("remember", content, {"content_type": f"text/{word['junk']}"}),
        ("remember", content, {"idempotency_key": f"{word['key']} x"}),
        ("remember", content, {"client": word["client"]}),
        ("forget", {"query": word["query"], "scope": word["scope"]}, {}),
        ("recall", {**message, "limit": value}, {}),
        ("recall", {**message, word["field"]: word["excluded"]}, {}),
        ("recall", {"query": [word["message"]], "exclude": word["excluded"]}, {"token": client}),
        (f"review/{word['path']}/approve", {"digest": word["digest"]}, {}),
        (f"review/{word['path']}/reject", {}, {}),
        ("undo", {"taskId": word["target"]}, {}),
        *(("erase", {"target": f"{each}{word['target']}.md", "dryRun": False}, {}) for each in ("", "user/")),
        ("erase", {"target": f"../{word['target']}", "dryRun": False}, {"token": client}),
    ):
        yield daemon.post(f"{BASE}/{path}", body, **more)
    for name in "token", "host", "origin":
        yield send("GET", "/healthz", **{name: f"http://{word[name]}" if name == "origin" else word[name]})
    for path in "/", "/workspaces/", "/workspaces/%2f":
        yield send("GET", f"{path}{word['path']}{'/memory/tasks' * (len(path) > 1)}")
    for method, kind in product(("GET", "DELETE"), ("remember", "forget", "dream")):
        more = {"prefer": word["prefer"], "if_none_match": word["etag"]}
        yield send(method, f"{BASE}/{kind}/{word['path']}", **more)
    yield send(word["method"].upper(), "/healthz")
    query = f"tasks?status={word['parameter']}&cursor={word['cursor']}"
    for path in query, f"policy/explain?verb={word['parameter']}&path=x", f"review/{word['path']}":
        yield send("GET", f"{BASE}/{path}")


def talkative_model(request):
    """Do the job and add a word to the answer."""
    thought = remember_fact(request)
    return (
        FinishWithText(f"{thought.text} {WORDS['words']}") if isinstance(thought, FinishWithText) else thought
    )


ESCAPE = [("write_file", {"path": f"../{WORDS['escape']}.md", "content": WORDS["words"]})]
FAILING = {
    "remember_path_escape": RequestCalls(ESCAPE),
    "remember_no_update": FinishWithText(f"Saved: {WORDS['words']}"),
}


class LeakProbe:
    """A daemon that received every word, and the content of each sink."""

    def __init__(self, daemon, model):
        self.daemon, self.client = daemon, daemon.create_token("editor", "editor-1")
        client_options = {"token": self.client, "client": "editor-1"}
        self.task = daemon.remember(FACT, **client_options, source={"ref": WORDS["ref"]})
        assert daemon.wait_for_task(self.task)["status"] == "completed"
        daemon.wait_for_task(daemon.submit("forget", {"query": WORDS["query"]}, idempotency_key=WORDS["key"]))
        failed = []
        for code, thought in FAILING.items():
            model.behavior = lambda _, thought=thought: thought
            failed.append(daemon.run_task("remember", {"content": f"Another, {WORDS['fact']}, {code}"}))
            assert failed[-1]["error"]["code"] == code
        query = {"query": f"What editor? {WORDS['message']}", "exclude": [f"user/{WORDS['excluded']}.md@0"]}
        assert find_words(daemon.post(f"{BASE}/recall", query, **client_options).text) == ["fact"]
        self.answers = [*requests(daemon, self.client)]
        self.answers += [daemon.get(build_task_path(each["taskId"])) for each in failed]
        with daemon.follow_events(cursor=daemon.cursor(0)) as follower:
            last = failed[-1]["taskId"]
            ended = {"taskId": last, "status": "failed"}
            self.events = follower.read_until(lambda each: each.data == each.data | ended)
        self.sinks = {
            "log": daemon.log,
            "address": (daemon.home / "state" / "daemon.json").read_text(),
            "problems": "\n".join(f"{each.status_code} {each.headers} {each.text}" for each in self.answers),
            "events": "\n".join(json.dumps(event.document) for event in self.events),
            "metrics": daemon.get("/metrics").text,
            "description": daemon.get("/openapi.json").text + daemon.get("/capabilities").text,
        }


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    with (
        PausableModel(talkative_model) as model,
        start_daemon_process(tmp_path_factory.mktemp("leaks"), *model.flags) as daemon,
    ):
        yield LeakProbe(daemon, model)


def test_no_sink_repeats_input_token_or_directory(probe, subtests):
    daemon = probe.daemon
    directories = [str(path) for path in (daemon.base, daemon.home, daemon.work, daemon.get_root())]
    for name, content in probe.sinks.items():
        with subtests.test(name):
            assert (bool(content), find_words(content)) == (True, [])
            hidden = [] if name in {"log", "address"} else [*directories, "site-packages"]
            assert not [each for each in (daemon.token, probe.client, *hidden) if each in content]
    assert any(WORDS["fact"] in text for text in daemon.read_files().values())  # The fact was stored.
    assert WORDS["words"] not in daemon.get(build_task_path(probe.task)).text
    assert {400, 401, 403, 404, 405, 413, 415, 421} <= {answer.status_code for answer in probe.answers}
    assert [event.type for event in probe.events].count("memory_changed") == 1


def test_log_is_json_and_problems_use_fixed_sentences(probe):
    lines = [json.loads(line)["event"] for line in probe.sinks["log"].splitlines()]
    assert (len(lines) > 5, lines.count("request_broke")) == (True, 0)
    for answer in probe.answers:
        found = answer.json()
        if answer.status_code < 400:
            error = found["error"]
            assert error is None or error["message"] == CODES[error["code"]].sentence
            continue
        assert (answer.status_code, found["error"]) == CODES[found["code"]][:2]
        assert set(found) <= {"type", "title", "status", "error", "code", "reason", "field", "detail"}
        assert re.fullmatch(r"[a-z_]+", found.get("reason", "x"))


def test_ledger_keeps_only_history_and_results(probe):
    ledger = probe.daemon.home / "state" / "ledger.db"
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: repr(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in names}
    assert {"event", "task", "token", "record", "change"} <= set(found)
    for name, word in WORDS.items():
        assert {table for table, rows in found.items() if word in rows} <= MAY_HOLD.get(name, set()), name
    assert WORDS["fact"] in found["change"]


def test_state_directory_is_private_and_has_only_token_copy(probe):
    base, state = probe.daemon.base, probe.daemon.home / "state"
    for path in (state, *state.rglob("*")):
        assert path.lstat().st_mode & 0o077 == 0, path
    assert (base / "daemon.sock").lstat().st_mode & 0o777 == 0o600
    files = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    assert [path for path, data in files.items() if probe.daemon.token.encode() in data] == [state / "token"]
    assert [path for path, data in files.items() if probe.client.encode() in data] == []


def test_unreadable_policy_is_not_quoted(tmp_path):
    policy = tmp_path / f"{WORDS['path']}.toml"
    policy.write_text(f"name = '{WORDS['value']}'\n[[{WORDS['junk']}]]\n")
    with start_local_daemon(tmp_path, policy=policy) as daemon:
        explain = f"{BASE}/policy/explain?verb=read&path=user/a.md"
        answers = [daemon.get(path) for path in ("/readyz", f"{BASE}/review", "/metrics", explain)]
        answers.append(daemon.post(f"{BASE}/remember", {"content": FACT}))
        assert [answer.status_code for answer in answers] == [503, 409, 200, 409, 409]
        texts = [f"{answer.headers} {answer.text}" for answer in answers]
        assert find_words(str([*texts, *(record.getMessage() for record in daemon.records)])) == []


@pytest.mark.threat("T-LEAK-04", control="foreign_logs")
def test_logs_of_other_libraries_show_level_and_name_only(capsys):
    package_logger, root = logging.getLogger("muniment"), logging.getLogger()
    saved = root.handlers[:], root.level, package_logger.handlers[:], package_logger.level
    try:
        service.configure_logs()
        foreign = logging.getLogger("foreign")
        foreign.error("broke: %s", WORDS["junk"], exc_info=ValueError(WORDS["value"]))
        foreign.warning(WORDS["junk"])
        foreign.info(WORDS["junk"])
    finally:
        root.handlers[:], level, package_logger.handlers[:], our_level = saved
        root.setLevel(level)
        package_logger.setLevel(our_level)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    records = [(line["event"], line["level"], line["logger"], line.get("problem")) for line in lines]
    error = "<class 'ValueError'>"
    assert records == [
        ("foreign_log", "error", "foreign", error),
        ("foreign_log", "warning", "foreign", None),
    ]
    assert find_words(json.dumps(lines)) == []


# -- files ---------------------------------------------------------------------------------------------

OWNER = Originator("owner")
SECRETS = {rule["id"]: fill_example(rule["positive"][-1], 11) for rule in RULES}
WIFI = fill_example("The deploy token is ghp_{a62:36}", 3)


def random_parts(text):
    """Return the random parts of a text: runs of letters and digits."""
    runs = "".join(char if char.isalnum() else " " for char in text).split()
    cut = {run[at : at + 16] for run in runs if len(run) >= 16 for at in range(0, len(run) - 15, 8)}
    return {each.encode() for each in cut if any(map(str.isdigit, each)) and any(map(str.isalpha, each))}


WANTED = {piece for text in (WIFI, *SECRETS.values()) for piece in random_parts(text)}


def find_files(home, wanted):
    """Return the files below a home that contain one of some parts in their bytes or name."""
    contents = {
        path: bytes(path) + (path.read_bytes() if path.is_file() else b"") for path in home.rglob("*")
    }
    return [path for path, data in contents.items() if any(piece in data for piece in wanted)]


@pytest.mark.threat("T-LEAK-11", control="withheld_secrets")
def test_secret_of_queued_task_is_not_on_disk(tmp_path):
    assert len(WANTED) > len(SECRETS)
    with State(tmp_path / "state") as state:
        lane = Lane(state, "w")
        token = WIFI.removeprefix("The deploy token is ")
        cut_in_two = f"Deploys use {token[:12]}\u200b{token[12:]} in CI"
        for number, secret in enumerate([cut_in_two, *SECRETS.values()]):
            lane.submit(NewTask("remember", {"content": secret}, OWNER, {}, ref=WIFI))
            if number % 10 == 9:
                while (begun := lane.claim()) is not None:
                    lane.finish(begun, TaskOutcome("failed", error={"code": "remember_refused"}))
        assert find_files(tmp_path, WANTED | {token[12:].encode()}) == []


@pytest.mark.threat("T-LEAK-11", control="emptied_logs")
@pytest.mark.threat("T-LEAK-11", control="overwritten_pages")
def test_query_without_effect_is_removed_from_disk(tmp_path):
    """Long texts have separate pages, short ones share one; some are removed while others are pending."""
    with State(tmp_path / "state") as state:
        lane = Lane(state, "w")
        texts = [f"{number:03}-wombatquartz-{number * 7919 % 1000:03}" for number in range(60)]
        for number, words in enumerate(texts):
            query = f"{words} " * (1, 3, 90, 900)[number % 4]
            lane.submit(NewTask("forget", {"query": query}, OWNER, {}))
            if number % 3 == 2:
                while (begun := lane.claim()) is not None:
                    lane.finish(begun, TaskOutcome("failed", error={"code": "forget_failed"}))
        assert lane.try_truncate_log()
        assert find_files(tmp_path, [words.encode() for words in texts]) == []


@pytest.mark.threat("T-LEAK-12", control="scrubbed_ledger")
def test_erase_removes_every_byte_from_home(model_daemon, model):
    phrases = ("zebrafinch quokkasong", "marmosetglow dugongmoon", "axolotlrain pangolinwind")
    secret_words = {word.encode() for each in phrases for word in (*each.split(), *each.title().split())}
    who = {"token": model_daemon.add_client("editor", "editor-1", trust="owner"), "client": "editor-1"}
    facts = [f"The user's dream of {each} is called {each.title()} at home" for each in phrases]
    tasks = [model_daemon.run_task("remember", {"content": fact}, **who) for fact in facts]
    for fact in facts:
        model_daemon.post(f"{BASE}/recall", {"query": fact})
    model_daemon.run_task("forget", {"query": phrases[1]})
    model_daemon.run_task("dream", {})
    model.pause()
    request_count = len(model.server.requests)
    model_daemon.remember("The user likes pyramids")
    waiting = model_daemon.remember(facts[0])  # Erase ends this queued task and removes its text.
    model.wait_for_requests(request_count + 1)
    assert len(find_files(model_daemon.home, secret_words)) > 3
    cleared = 0
    for number, task in enumerate(tasks):
        target = {"target": task["taskId"]}
        plan = model_daemon.post(f"{BASE}/erase", target | {"dryRun": True}).json()
        assert (plan["status"], plan["files"]) == ("preview", task["result"]["filesTouched"])
        receipt = model_daemon.post(f"{BASE}/erase", target | {"dryRun": False}).json()
        assert receipt["status"] == "erased"
        cleared += receipt["laneTasks"]  # The first erase also clears tasks whose results list it as similar.
        assert phrases[number].split()[0] not in str(receipt)
    assert cleared > len(tasks)
    assert find_files(model_daemon.home, secret_words) == []  # Nothing has overwritten the bytes yet.
    for erased_task in map(model_daemon.read_task, (*(task["taskId"] for task in tasks), waiting)):
        assert (erased_task["status"], erased_task["error"]["code"], "result" in erased_task) == (
            "failed",
            "erased",
            False,
        )
    model.resume()
    model_daemon.run_task("dream", {})
    assert find_files(model_daemon.home, secret_words) == []
    model_daemon.run_coroutine(model_daemon.daemon.stop())
    assert find_files(model_daemon.home, secret_words) == []
