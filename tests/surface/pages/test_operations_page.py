"""Every command that the page for operators shows works, in the order in which it stands there."""

import json
import re

import pytest

from kit.shell import blocks_of, printed, text_of
from kit.store.ground import Proposed, by, change_set
from muniment.kernel.binding import bind_all
from muniment.kernel.names import Trust
from muniment.policy.load import load_policy
from muniment.store.review import hold
from muniment.store.state import State

TEXT = text_of("docs/operations.md")
BLOCKS = blocks_of(TEXT)


@pytest.fixture
def shell(tmp_path):
    """Runs a line in a home of its own."""
    tmp_path.chmod(0o700)
    return lambda line: printed("/bin/sh", "-c", line, home=tmp_path)


def waiting(home):
    """A change that waits for its owner."""
    policy = load_policy("strict")
    with State(home / "state") as state, bind_all({"user": home / "user"})["user"] as bound:
        whole = change_set([Proposed("user/n.md", None, b"waits\n")])
        terms = {"policy": policy.digest, "roots": {"user": bound}}
        return hold(state, by(trust=Trust.EXTERNAL), whole, ("why",), **terms)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_command_of_the_page_works(shell, tmp_path):
    saved = json.loads(shell('muniment remember "The owner prefers dark mode in editors" --json'))
    words = {"ENTRY": saved["files_touched"][0], "TASK": saved["task_id"]}
    words["REVIEW"] = waiting(tmp_path / ".muniment")
    for line in "".join(BLOCKS).splitlines():
        assert line.startswith("$ "), line
        shell(re.sub("|".join(words), lambda found: words[found[0]], line[2:]))


@pytest.mark.slow
def test_a_backup_brings_back_user_and_projects_with_their_history(shell, tmp_path):
    (tmp_path / ".git").mkdir()
    facts = {"user": "I prefer dark mode", "project": "The project uses pnpm"}
    saved = {scope: json.loads(shell(f'muniment remember "{fact}" --json')) for scope, fact in facts.items()}
    at = next(number for number, block in enumerate(BLOCKS) if "muniment backup" in block)
    for block in BLOCKS[at : at + 2]:
        shell(" && ".join(line[2:] for line in block.splitlines()))
    for scope, result in saved.items():
        assert result["touched_scopes"] == [scope]
        assert facts[scope] in shell(f"muniment show {result['files_touched'][0]}")
        shell(f"muniment undo {result['task_id']}")


def test_it_names_every_command_that_is_for_operators():
    assert BLOCKS
    for command in (
        *("history", "why", "show", "undo", "erase", "index rebuild", "index verify"),
        *("review list", "review show", "review approve", "audit verify", "audit head", "audit show"),
    ):
        assert f"muniment {command}" in TEXT
