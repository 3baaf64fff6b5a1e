"""Names that somebody planted before a commit, in the hope that it writes through them."""

from __future__ import annotations

import pytest

from kit.store.ground import laid_out, new


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


@pytest.mark.threat("T-PATH-07", control="random_names")
def test_no_name_that_can_be_known_beforehand_is_written_under(ground):
    before = (ground.outside / "secret.md").read_bytes()
    for number in range(1000):
        (ground.user / f".muniment-{number:016x}.tmp").symlink_to(ground.outside / "secret.md")
        (ground.user / f"new.md.{number}.tmp").symlink_to(ground.outside / "secret.md")
    for name in ("new.md.tmp", ".new.md.tmp", "new.md~", ".new.md.swp", "#new.md#", "new.tmp"):
        (ground.user / name).symlink_to(ground.outside / "secret.md")
    done = ground.commit(new("user/new.md"))
    assert [change.path for change in done.changes] == ["user/new.md"]
    assert (ground.user / "new.md").read_bytes() == b"new\n"
    assert (ground.outside / "secret.md").read_bytes() == before
