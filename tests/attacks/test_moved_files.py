"""A person who moves files by hand does not become the author of other authors' text."""

import shutil

import pytest

from muniment.kernel.names import Trust
from muniment.types import RememberRequest

FACT = "The user prefers a quillfeather over a pen"


@pytest.mark.threat("T-MEM-34", control="moved_trust")
def test_moved_agent_entry_keeps_agent_trust(open_memory):
    opened = open_memory()
    (path,) = opened.try_remember(RememberRequest(FACT, scope="user", trust=Trust.AGENT)).files_touched
    root = opened.context.roots["user"].trusted_path
    (root / "mine").mkdir(mode=0o700)
    shutil.copy2(root / path.removeprefix("user/"), root / "mine" / "copied.md")
    (root / path.removeprefix("user/")).rename(root / "mine" / "renamed.md")
    found = {each.path: str(each.trust) for each in opened.recall("quillfeather or pen?").entries}
    assert found
    assert found.keys() <= {"user/mine/copied.md", "user/mine/renamed.md"}
    assert set(found.values()) == {"agent"}
    for name in ("copied", "renamed"):
        assert opened.why(f"user/mine/{name}.md").trust == "agent"


def test_renamed_owner_entry_keeps_owner_trust(open_memory):
    opened = open_memory()
    (path,) = opened.remember(FACT, scope="user").files_touched
    root = opened.context.roots["user"].trusted_path
    (root / path.removeprefix("user/")).rename(root / "renamed.md")
    (root / "by-hand.md").write_text("The user writes with a goosequill.\n")
    assert [opened.why(f"user/{name}.md").trust for name in ("renamed", "by-hand")] == ["owner", "owner"]
