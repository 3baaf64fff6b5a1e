"""`--transcript`: all that was said, in a new private file, also of a run that failed, and never the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kit.agent.servers import KEY
from muniment.agent.model import AssistantMessage
from muniment.cli.app import app
from muniment.cli.remember import to_file
from muniment.testing.chat_server import ChatServer, always, completion, failure
from muniment.testing.minds import perfect, through


@pytest.fixture
def remember(tmp_path):
    def run(answer, *flags):
        with ChatServer(answer) as server:
            named = ["--model", "tiny", "--base-url", server.base_url, "--workspace", str(tmp_path)]
            env = {"MUNIMENT_HOME": str(tmp_path / "home"), "MUNIMENT_API_KEY": KEY}
            return CliRunner().invoke(app, ["remember", "We deploy on Thursdays", *named, *flags], env=env)

    return run


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_that_fails_leaves_it_too(remember, tmp_path):
    path = tmp_path / "run.jsonl"
    done = remember(always(failure(404, "no such model")), f"--transcript={path}")
    assert "the rules filed the fact as it is" in done.output
    assert [each["from"] for each in lines(path)][:2] == ["system", "user"]


def test_the_key_is_not_in_it_even_if_the_server_repeats_it(remember, tmp_path):
    path = tmp_path / "run.jsonl"
    remember(always(completion({"content": f"Your key is {KEY}."})), f"--transcript={path}")
    assert "Your key is [key]." in path.read_text()
    assert KEY not in path.read_text()


@pytest.mark.parametrize("there", ["file", "link", "nowhere"])
def test_nothing_is_overwritten_or_followed_and_no_run_begins(remember, tmp_path, there):
    path = tmp_path / "run.jsonl"
    if there == "file":
        path.write_text("mine")
    elif there == "link":
        path.symlink_to(tmp_path / "target")
    else:
        path = tmp_path / "missing" / "run.jsonl"
    done = remember(lambda _: pytest.fail("a run began"), f"--transcript={path}")
    assert done.exit_code == 1
    assert "cannot be made" in done.output
    assert "[config_invalid]" in done.output
    assert not (tmp_path / "target").exists()
    assert there != "file" or path.read_text() == "mine"


@pytest.mark.parametrize("place", ["user", "user/topic", "linked"])
def test_none_is_made_in_the_memory_where_a_run_would_read_it(remember, tmp_path, place):
    topic = tmp_path / "home" / "user" / "topic"
    topic.mkdir(parents=True, mode=0o700)
    (tmp_path / "home" / "linked").symlink_to(topic)
    path = tmp_path / "home" / place / "run.md"
    for directory in (tmp_path / "home", tmp_path / "home" / "user"):
        directory.chmod(0o700)
    done = remember(lambda _: pytest.fail("a run began"), f"--transcript={path}")
    assert done.exit_code == 1
    assert "would lie in the memory" in done.output
    assert not path.exists()


def test_a_run_that_never_began_leaves_none(remember, tmp_path):
    path = tmp_path / "run.jsonl"
    done = remember(lambda _: pytest.fail("a run began"), f"--transcript={path}", "--scope=nowhere")
    assert "[invalid_scope]" in done.output
    assert not path.exists()


def test_a_full_disk_is_told_once_and_ends_no_run(capsys):
    with Path("/dev/full").open("w", encoding="utf-8") as file:
        witness = to_file(file)
        witness(AssistantMessage("x"))
        witness(AssistantMessage("y"))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "the transcript ends here" in told[0]
    assert "No space left" in told[0]


@pytest.mark.threat("T-LEAK-12", control="erased_transcripts")
def test_an_erasure_takes_the_transcripts_that_hold_it_and_no_other_file(remember, tmp_path):
    """By the task, by the text alone, and neither what another run said nor what took the place of one."""
    flags = [f"--transcript={tmp_path}/{name}.jsonl" for name in ("first", "again", "other", "replaced")]
    saved = json.loads(remember(through(perfect), flags[0], "--json").stdout)
    assert remember(through(perfect), flags[1]).exit_code == 0  # It is known already: nothing is written.
    erasing = ["erase", saved["files_touched"][0], "--yes", "--json", "--workspace", str(tmp_path)]
    clean = ["remember", "Tea is green", "--context=clean", flags[2], *erasing[4:]]
    other = CliRunner().invoke(app, clean, env=home(tmp_path))
    assert other.exit_code == 0, other.output
    assert remember(through(perfect), flags[3]).exit_code == 0
    (tmp_path / "replaced.jsonl").unlink()
    (tmp_path / "replaced.jsonl").write_text("We deploy on Thursdays, somebody wrote\n")
    done = CliRunner().invoke(app, erasing, env=home(tmp_path))
    assert json.loads(done.stdout)["notes"] == ["transcripts that were deleted: 2"]
    assert sorted(path.stem for path in tmp_path.glob("*.jsonl")) == ["other", "replaced"]
    files = [path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert not any(b"Thursdays" in data or b"first.jsonl" in data for data in files)


def home(base):
    return {"MUNIMENT_HOME": str(base / "home")}
