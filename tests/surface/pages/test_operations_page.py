"""Every command of the page for operators works, in the order of the page."""

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
    """Return a function that runs a line in a separate home."""
    tmp_path.chmod(0o700)
    return lambda line: printed("/bin/sh", "-c", line, home=tmp_path)


def create_pending_review(home):
    """Store a change that waits for the decision of its owner, and return the id of the review."""
    policy = load_policy("strict")
    with State(home / "state") as state, bind_all({"user": home / "user"})["user"] as bound:
        whole = change_set([Proposed("user/n.md", None, b"waits\n")])
        options = {"policy": policy.digest, "roots": {"user": bound}}
        return hold(state, by(trust=Trust.EXTERNAL), whole, ("why",), **options)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_command_of_the_page_works(shell, tmp_path):
    saved = json.loads(shell('muniment remember "The owner prefers dark mode in editors" --json'))
    values = {"ENTRY": saved["files_touched"][0], "TASK": saved["task_id"]}
    values["REVIEW"] = create_pending_review(tmp_path / ".muniment")
    for line in "".join(BLOCKS).splitlines():
        assert line.startswith("$ "), line
        shell(re.sub("|".join(values), lambda found: values[found[0]], line[2:]))


@pytest.mark.slow
def test_backup_restores_user_and_projects_with_history(shell, tmp_path):
    (tmp_path / ".git").mkdir()
    facts = {"user": "I prefer dark mode", "project": "The project uses pnpm"}
    saved = {scope: json.loads(shell(f'muniment remember "{fact}" --json')) for scope, fact in facts.items()}
    position = next(number for number, block in enumerate(BLOCKS) if "muniment backup" in block)
    for block in BLOCKS[position : position + 2]:
        shell(" && ".join(line[2:] for line in block.splitlines()))
    for scope, result in saved.items():
        assert result["touched_scopes"] == [scope]
        assert facts[scope] in shell(f"muniment show {result['files_touched'][0]}")
        shell(f"muniment undo {result['task_id']}")


def test_page_names_every_operator_command():
    assert BLOCKS
    for command in (
        *("history", "why", "show", "undo", "erase", "index rebuild", "index verify"),
        *("review list", "review show", "review approve", "audit verify", "audit head", "audit show"),
    ):
        assert f"muniment {command}" in TEXT
