"""Names that somebody planted before a commit, in the hope that it writes through them."""

from __future__ import annotations

import pytest

from kit.store.ground import laid_out, new


@pytest.mark.threat("T-PATH-07", control="random_names")
def test_no_name_that_can_be_known_beforehand_is_written_under(tmp_path):
    with laid_out(tmp_path) as ground:
        secret = ground.outside / "secret.md"
        names = [f".muniment-{number:016x}.tmp" for number in range(500)]
        names += ["new.md.tmp", ".new.md.tmp", "new.md~", ".new.md.swp", "#new.md#", "new.tmp"]
        for name in (*names, *(f"new.md.{number}.tmp" for number in range(100))):
            (ground.user / name).symlink_to(secret)
        assert [change.path for change in ground.commit(new("user/new.md")).changes] == ["user/new.md"]
        assert (ground.user / "new.md").read_bytes() == b"new\n"
        assert secret.read_bytes() == b"secret\n"
