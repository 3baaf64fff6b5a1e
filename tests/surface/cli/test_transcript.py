"""`--transcript`: the whole conversation in a new private file, also of a failed run, without the key."""

import json
from pathlib import Path

import pytest

from kit.agent.servers import KEY
from kit.agent.simulated_models import build_answerer, remember_fact
from muniment.agent.model import AssistantMessage
from muniment.cli.remember import create_witness
from muniment.testing.chat_server import ChatServer, completion_response, error_response, repeat_responder


@pytest.fixture
def remember(cli, tmp_path):
    def run(answer, *flags):
        with ChatServer(answer) as server:
            named = ["--model", "tiny", "--base-url", server.base_url, "--workspace", str(tmp_path)]
            line = ("remember", "We deploy on Thursdays", *named, *flags)
            done = cli(*line, bound=False, MUNIMENT_API_KEY=KEY)
        return done, server.requests

    return run


def test_failed_run_leaves_transcript_without_key(remember, tmp_path):
    path = tmp_path / "run.jsonl"
    done, _ = remember(repeat_responder(error_response(404, "no such model")), f"--transcript={path}")
    assert "the rules stored the fact verbatim" in done.output
    senders = [json.loads(line)["from"] for line in path.read_text().splitlines()]
    assert senders[:2] == ["system", "user"]
    path = tmp_path / "again.jsonl"
    remember(
        repeat_responder(completion_response({"content": f"Your key is {KEY}."})), f"--transcript={path}"
    )
    assert "Your key is [key]." in path.read_text()
    assert KEY not in path.read_text()


def test_transcript_at_invalid_path_overwrites_nothing(remember, home, tmp_path):
    topic = home / "user" / "topic"
    topic.mkdir(parents=True, mode=0o700)
    for directory in (home, home / "user"):
        directory.chmod(0o700)
    (home / "linked").symlink_to(topic)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    unusable = [tmp_path / "file", tmp_path / "link", tmp_path / "missing" / "run.jsonl"]
    inside = [home / "user" / "run.md", topic / "run.md", home / "linked" / "run.md"]
    for path in (*unusable, *inside):
        reason = "cannot be created" if path in unusable else "is inside the memory"
        done, requests = remember(build_answerer(remember_fact), f"--transcript={path}")
        assert (done.exit_code, requests) == (1, [])
        assert (reason in done.output, "[config_invalid]" in done.output) == (True, True)
        assert path.name == "file" or not path.exists()
    assert ((tmp_path / "file").read_text(), (tmp_path / "target").exists()) == ("mine", False)
    done, requests = remember(
        build_answerer(remember_fact), f"--transcript={tmp_path}/run.jsonl", "--scope=nowhere"
    )
    assert ("[invalid_scope]" in done.output, requests) == (True, [])
    assert not (tmp_path / "run.jsonl").exists()  # A run that never started leaves no transcript.


def test_transcript_on_full_disk_prints_one_note(capsys):
    with Path("/dev/full").open("w", encoding="utf-8") as file:
        witness = create_witness(file)
        witness(AssistantMessage("x"))
        witness(AssistantMessage("y"))
    (note,) = capsys.readouterr().err.splitlines()
    assert ("the transcript stops here" in note, "No space left" in note) == (True, True)


@pytest.mark.threat("T-LEAK-12", control="erased_transcripts")
def test_erase_deletes_transcripts_with_the_text_only(remember, cli, home, tmp_path):
    """Erase by task and by text; keep transcripts of other runs and files that replaced one."""
    flags = [f"--transcript={tmp_path}/{name}.jsonl" for name in ("first", "again", "other", "replaced")]
    saved = json.loads(remember(build_answerer(remember_fact), flags[0], "--json")[0].stdout)
    # The fact is already known: nothing is written.
    assert remember(build_answerer(remember_fact), flags[1])[0].exit_code == 0
    workspace = ("--workspace", tmp_path)
    cli.run_for_lines("remember", "Tea is green", "--context=clean", flags[2], *workspace, bound=False)
    assert remember(build_answerer(remember_fact), flags[3])[0].exit_code == 0
    (tmp_path / "replaced.jsonl").unlink()
    (tmp_path / "replaced.jsonl").write_text("We deploy on Thursdays, another user wrote\n")
    done = cli.run_for_document("erase", saved["files_touched"][0], "--yes", *workspace, bound=False)
    assert done["notes"] == ["deleted transcripts: 2"]
    assert sorted(path.stem for path in tmp_path.glob("*.jsonl")) == ["other", "replaced"]
    files = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert not any(b"Thursdays" in data or b"first.jsonl" in data for data in files)
