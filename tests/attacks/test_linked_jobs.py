"""Remember with resolved links: results and known facts use the one real path of a file."""

import pytest

from kit.memories import make_roots, photograph, put, strict
from kit.operations.places import any_words, opened, remembering, write
from muniment.names import Symlinks
from muniment.testing.minds import ScriptedModel, call, calls, say

__all__ = ["any_words"]
# Other tests cover the limits of a model's writes (T-RUN-14); here the model may write any text.
pytestmark = pytest.mark.usefixtures("any_words")

FACT = "The user prefers dark mode"
LINKS = {"l.md": "real.md", "t": "topic", "index.md": "MEMORY.md", "out.md": "../outside/secret.md"}
READ = calls(call("read_file", path="user/l.md"))
NEW = write("user/t/new.md", "new\n")


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    put(roots["user"], "real.md", f"{FACT}\n")
    put(roots["user"], "topic/one.md", "one\n")
    for rel, target in LINKS.items():
        (roots["user"] / rel).symlink_to(target)
    return roots


@pytest.fixture(params=["worker", "in process"])
def remember_in_links(request, roots):
    """Remember the fact with a model, in a place whose links are resolved."""
    in_process = request.param == "in process"

    def run(*steps):
        policy = strict(require="none" if in_process else "partial")
        with opened(roots, policy, in_process=in_process, symlinks=Symlinks.BENEATH) as context:
            return remembering(context, FACT, ScriptedModel(steps))

    return run


def test_linked_file_is_reported_by_its_resolved_path(remember_in_links, roots):
    before = photograph(roots["user"])
    for words in ("It stands in user/l.md.", "It stands in user/real.md."):
        known = remember_in_links(READ, say(words))
        assert (known.status, known.unchanged) == ("completed", True)
        assert known.summary == "already known: user/real.md"
        assert photograph(roots["user"]) == before
    done = remember_in_links(
        calls(call("read_file", path="user/l.md"), call("read_file", path="user/t/one.md")),
        calls(call("edit", path="user/l.md", old_string="The user", new_string="- The user"), NEW),
        say("Saved in user/l.md."),
    )
    assert done.error is None
    assert done.files_touched == ("user/real.md", "user/topic/prefers-dark-mode.md")
    assert done.touched_scopes == ("user",)
    assert f"- {FACT}" in (roots["user"] / "real.md").read_text()
    assert (roots["user"] / "l.md").is_symlink()
    assert (roots["user"] / "topic" / "prefers-dark-mode.md").is_file()


def test_linked_index_or_removed_file_makes_no_fact_known(remember_in_links, roots):
    put(roots["user"], "MEMORY.md", "an index\n")
    for path in ("user/index.md", "user/absent.md"):
        done = remember_in_links(calls(call("read_file", path=path)), say(f"It stands in {path}."))
        assert done.error.code == "remember_no_update"
    done = remember_in_links(READ, lambda _: (roots["user"] / "real.md").unlink() or say("In user/l.md."))
    assert done.error.code == "remember_no_update"
