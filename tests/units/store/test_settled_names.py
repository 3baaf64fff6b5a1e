"""A run that may not know what is there gets other names, never a conflict, and no name to hide behind."""

from __future__ import annotations

import os

import pytest

from kit.store.ground import claim, laid_out, lax, new
from muniment.errors import QuotaExceeded, Refused
from muniment.names import MAX_SEGMENT_BYTES
from muniment.store import upkeep


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


def listing(path):
    return sorted(entry.name for entry in path.iterdir())


def settled(ground, *paths, policy=None, **more):
    done = ground.commit(*map(new, paths), settle_names=True, policy=policy or lax(), **more)
    assert [change.kind for change in done.changes] == ["create"] * len(paths)
    return [change.path for change in done.changes]


def test_a_folder_that_differs_only_by_case_is_the_folder_that_is_there(ground):
    assert settled(ground, "user/TOPIC/n.md", "user/Topic/T.md", "user/New/a.md", "user/new/a.md") == [
        "user/topic/n.md",
        "user/topic/T-2.md",
        "user/New/a.md",
        "user/New/a-2.md",
    ]


@pytest.mark.parametrize("kind", ["file", "link", "fifo"])
def test_a_folder_whose_name_is_taken_by_something_else_is_numbered_once(ground, kind):
    path = ground.user / "x"
    match kind:
        case "file":
            path.touch()
        case "link":
            path.symlink_to(ground.outside)
        case "fifo":
            os.mkfifo(path)
    assert settled(ground, "user/X/n.md", "user/x/n.md") == ["user/X-2/n.md", "user/X-2/n-2.md"]
    assert settled(ground, "user/x/n.md") == ["user/X-2/n-3.md"]
    assert listing(ground.outside) == ["secret.md"]


def test_what_stands_in_the_way_is_neither_followed_nor_replaced(ground):
    (ground.user / "n.md").symlink_to(ground.outside / "secret.md")
    os.link(ground.outside / "secret.md", ground.user / "h.md")
    assert settled(ground, "user/n.md", "user/h.md") == ["user/n-2.md", "user/h-2.md"]
    assert (ground.outside / "secret.md").read_bytes() == b"secret\n"


@pytest.mark.parametrize("path", ["user/MEMORY.md", "user/index/x.md", "user/pinned/x.md", "user/AGENTS.md"])
def test_another_name_never_hides_that_the_name_is_refused(ground, path):
    (ground.base / path).parent.mkdir(exist_ok=True)
    (ground.base / path).write_bytes(b"")
    before = ground.photograph()
    with pytest.raises(Refused):
        ground.commit(new(path), settle_names=True)
    assert ground.photograph() == before


@pytest.mark.parametrize("char", ["x", "é", "語", "😀"])
def test_a_name_that_grows_too_long_is_cut_between_characters(ground, char):
    stem = (char * MAX_SEGMENT_BYTES).encode()[: MAX_SEGMENT_BYTES - 3].decode(errors="ignore")
    assert settled(ground, f"user/{stem}.md") == [f"user/{stem}.md"]
    for number in range(2, 12):
        (path,) = settled(ground, f"user/{stem}.md")
        name = path.removeprefix("user/")
        assert name.endswith(f"{char}-{number}.md")
        assert len(name.encode()) <= MAX_SEGMENT_BYTES
        assert stem.startswith(name.removesuffix(f"-{number}.md"))


def test_there_is_an_end_to_numbering(ground, monkeypatch):
    monkeypatch.setattr(upkeep, "MAX_SUFFIX", 3)
    settled(ground, "user/a.md", "user/a-3.md")
    before = ground.photograph()
    with pytest.raises(QuotaExceeded):
        settled(ground, "user/a.md")
    assert ground.photograph() == before


def test_claims_of_a_run_that_saw_nothing_count_for_nothing(ground):
    claims = [claim("user/a.md", None), claim("user/topic/t.md", b"guessed")]
    assert settled(ground, "user/a.md", claims=claims) == ["user/a-2.md"]


def test_a_run_that_saw_nothing_may_not_replace_by_guessing(ground):
    before = ground.photograph()
    policy = lax().model_copy(update={"layers": (no_changes(lax().layers[0]),)})
    with pytest.raises(Refused):
        ground.commit(ground.edit("user/a.md"), settle_names=True, policy=policy)
    assert ground.photograph() == before


def no_changes(layer):
    (rule,) = layer.allow
    return layer.model_copy(update={"allow": (rule.model_copy(update={"verbs": ("create",)}),)})
