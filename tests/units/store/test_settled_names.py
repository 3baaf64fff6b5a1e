"""A run that may not know what is there gets other names, never a conflict, and no name to hide behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.store.ground import claim, lax, new
from muniment.errors import QuotaExceeded, Refused
from muniment.names import MAX_SEGMENT_BYTES
from muniment.store import upkeep


def settled(ground, *paths, **more):
    done = ground.commit(*map(new, paths), settle_names=True, policy=lax(), **more)
    assert [change.kind for change in done.changes] == ["create"] * len(paths)
    return [change.path for change in done.changes]


def test_a_folder_that_differs_only_by_case_is_the_folder_that_is_there(ground):
    asked = "user/TOPIC/n.md", "user/Topic/T.md", "user/New/a.md", "user/new/a.md"
    made = ["user/topic/n.md", "user/topic/T-2.md", "user/New/a.md", "user/New/a-2.md"]
    assert settled(ground, *asked) == made


def test_what_stands_in_the_way_of_a_folder_or_a_file_is_neither_followed_nor_replaced(ground):
    secret = ground.outside / "secret.md"
    kinds = {"f": Path.touch, "l": lambda path: path.symlink_to(ground.outside), "p": os.mkfifo}
    for name, make in kinds.items():
        make(ground.user / name)
        upper = f"user/{name.upper()}"
        assert settled(ground, f"{upper}/n.md", f"user/{name}/n.md") == [
            f"{upper}-2/n.md",
            f"{upper}-2/n-2.md",
        ]
        assert settled(ground, f"user/{name}/n.md") == [f"{upper}-2/n-3.md"]
    (ground.user / "n.md").symlink_to(secret)
    os.link(secret, ground.user / "h.md")
    assert settled(ground, "user/n.md", "user/h.md") == ["user/n-2.md", "user/h-2.md"]
    assert {path: path.read_bytes() for path in ground.outside.iterdir()} == {secret: b"secret\n"}


def test_another_name_never_hides_that_the_name_is_refused_or_replaces_by_guessing(ground):
    for path in ("user/MEMORY.md", "user/index/x.md", "user/pinned/x.md", "user/AGENTS.md"):
        (ground.base / path).parent.mkdir(exist_ok=True)
        (ground.base / path).write_bytes(b"")
        before = ground.photograph()
        with pytest.raises(Refused):
            ground.commit(new(path), settle_names=True)
    (layer,) = lax().layers
    (rule,) = layer.allow
    creating = layer.model_copy(update={"allow": (rule.model_copy(update={"verbs": ("create",)}),)})
    policy = lax().model_copy(update={"layers": (creating,)})
    with pytest.raises(Refused):
        ground.commit(ground.edit("user/a.md"), settle_names=True, policy=policy)
    assert ground.photograph() == before
    claims = [claim("user/a.md", None), claim("user/topic/t.md", b"guessed")]  # They count for nothing.
    assert settled(ground, "user/a.md", claims=claims) == ["user/a-2.md"]


def test_a_name_too_long_is_cut_between_characters_and_numbering_ends(ground, monkeypatch):
    for char in "xé語😀":
        stem = (char * MAX_SEGMENT_BYTES).encode()[: MAX_SEGMENT_BYTES - 3].decode(errors="ignore")
        assert settled(ground, f"user/{stem}.md") == [f"user/{stem}.md"]
        monkeypatch.setattr(upkeep, "MAX_SUFFIX", 11)
        for number in range(2, 12 if char == "語" else 4):
            (path,) = settled(ground, f"user/{stem}.md")
            name = path.removeprefix("user/")
            assert name.endswith(f"{char}-{number}.md")
            assert len(name.encode()) <= MAX_SEGMENT_BYTES
            assert stem.startswith(name.removesuffix(f"-{number}.md"))
    monkeypatch.setattr(upkeep, "MAX_SUFFIX", 3)
    before = ground.photograph()
    with pytest.raises(QuotaExceeded):
        settled(ground, f"user/{stem}.md")
    assert ground.photograph() == before
