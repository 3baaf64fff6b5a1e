"""`--transcript`: all that was said, in a new private file, also of a run that failed, and never the key."""

import json
from pathlib import Path

import pytest

from kit.agent.served_minds import perfect, through
from kit.agent.servers import KEY
from muniment.agent.model import AssistantMessage
from muniment.cli.remember import to_file
from muniment.testing.chat_server import ChatServer, always, completion, failure


@pytest.fixture
def remember(muniment, tmp_path):
    def run(answer, *flags):
        with ChatServer(answer) as server:
            named = ["--model", "tiny", "--base-url", server.base_url, "--workspace", str(tmp_path)]
            line = ("remember", "We deploy on Thursdays", *named, *flags)
            done = muniment(*line, bound=False, MUNIMENT_API_KEY=KEY)
        return done, server.requests

    return run


def test_a_run_that_fails_leaves_it_too_and_the_key_is_not_in_it(remember, tmp_path):
    path = tmp_path / "run.jsonl"
    done, _ = remember(always(failure(404, "no such model")), f"--transcript={path}")
    assert "the rules stored the fact verbatim" in done.output
    said = [json.loads(line)["from"] for line in path.read_text().splitlines()]
    assert said[:2] == ["system", "user"]
    path = tmp_path / "again.jsonl"
    remember(always(completion({"content": f"Your key is {KEY}."})), f"--transcript={path}")
    assert "Your key is [key]." in path.read_text()
    assert KEY not in path.read_text()


def test_where_none_may_be_made_nothing_is_overwritten_and_no_run_begins(remember, home, tmp_path):
    topic = home / "user" / "topic"
    topic.mkdir(parents=True, mode=0o700)
    for directory in (home, home / "user"):
        directory.chmod(0o700)
    (home / "linked").symlink_to(topic)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    taken = [tmp_path / "file", tmp_path / "link", tmp_path / "missing" / "run.jsonl"]
    inside = [home / "user" / "run.md", topic / "run.md", home / "linked" / "run.md"]
    for path in (*taken, *inside):
        told = "cannot be created" if path in taken else "is inside the memory"
        done, asked = remember(through(perfect), f"--transcript={path}")
        assert (done.exit_code, asked) == (1, [])
        assert (told in done.output, "[config_invalid]" in done.output) == (True, True)
        assert path.name == "file" or not path.exists()
    assert ((tmp_path / "file").read_text(), (tmp_path / "target").exists()) == ("mine", False)
    done, asked = remember(through(perfect), f"--transcript={tmp_path}/run.jsonl", "--scope=nowhere")
    assert ("[invalid_scope]" in done.output, asked) == (True, [])
    assert not (tmp_path / "run.jsonl").exists()  # A run that never began leaves none.


def test_a_full_disk_is_told_once_and_ends_no_run(capsys):
    with Path("/dev/full").open("w", encoding="utf-8") as file:
        witness = to_file(file)
        witness(AssistantMessage("x"))
        witness(AssistantMessage("y"))
    (told,) = capsys.readouterr().err.splitlines()
    assert ("the transcript stops here" in told, "No space left" in told) == (True, True)


@pytest.mark.threat("T-LEAK-12", control="erased_transcripts")
def test_an_erasure_takes_the_transcripts_that_hold_it_and_no_other_file(remember, muniment, home, tmp_path):
    """By the task, by the text alone, and neither what another run said nor what took the place of one."""
    flags = [f"--transcript={tmp_path}/{name}.jsonl" for name in ("first", "again", "other", "replaced")]
    saved = json.loads(remember(through(perfect), flags[0], "--json")[0].stdout)
    assert remember(through(perfect), flags[1])[0].exit_code == 0  # It is known already: nothing is written.
    place = ("--workspace", tmp_path)
    muniment.lines("remember", "Tea is green", "--context=clean", flags[2], *place, bound=False)
    assert remember(through(perfect), flags[3])[0].exit_code == 0
    (tmp_path / "replaced.jsonl").unlink()
    (tmp_path / "replaced.jsonl").write_text("We deploy on Thursdays, somebody wrote\n")
    done = muniment.document("erase", saved["files_touched"][0], "--yes", *place, bound=False)
    assert done["notes"] == ["deleted transcripts: 2"]
    assert sorted(path.stem for path in tmp_path.glob("*.jsonl")) == ["other", "replaced"]
    files = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert not any(b"Thursdays" in data or b"first.jsonl" in data for data in files)
