"""Which roots a worker holds: those in which its policy lets it look, and no other."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kit.memories import CANARY, make_roots, photograph, put, strict
from muniment.confine.pool import Zygote
from muniment.errors import RememberRefused, StoreConflict
from muniment.sandbox import Sandbox

LOOKING = [
    *((["read", "modify"], True), (["list", "modify"], True), (["list", "read"], True)),
    *((["list", "read", "modify"], False), (["list", "read", "create", "modify", "delete"], False)),
]
"""What is denied in `project`, and whether its root is still shown."""


@dataclass
class Overheard:
    """A zygote, and the roots that workers were spawned with."""

    zygote: Zygote
    roots: list[dict[str, int]] = field(default_factory=list)

    def spawn(self, roots, **terms):
        self.roots.append(dict(roots))
        return self.zygote.spawn(roots, **terms)


@pytest.fixture
def overheard(zygote, monkeypatch):
    overheard = Overheard(zygote)
    monkeypatch.setattr("muniment.sandbox.shared_zygote", lambda: overheard)
    return overheard


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    put(roots["project"], "taken.md", f"{CANARY}\n")
    return roots


def test_a_worker_holds_a_root_only_if_it_may_look_into_it(overheard, roots):
    for denied, is_shown in LOOKING:
        overheard.roots.clear()
        with Sandbox(strict(deny=[(denied, ["/project/"])]), roots) as box:
            box.call("ls", {"path": ""})
            assert overheard.roots == [{scope: box._roots[scope].root.fd for scope in overheard.roots[0]}]
            assert set(overheard.roots[0]) == ({"user", "project"} if is_shown else {"user"}), denied
            if os.geteuid() == 0:
                held = [str(entry.readlink()) for entry in Path(f"/proc/{box._worker.pid}/fd").iterdir()]
                assert (str(roots["project"]) in held) is is_shown
                assert str(roots["user"]) in held


@pytest.mark.parametrize("in_process", [False, True], ids=["worker", "in process"])
def test_a_scope_that_may_only_be_added_to_looks_empty_and_a_taken_name_is_a_conflict_at_commit(
    roots, tmp_path, in_process
):
    policy = strict(require="none", deny=[(["list", "read", "modify"], ["/project/"])])
    with Sandbox(policy, roots, in_process=in_process) as box:
        assert box.call("ls", {"path": "project"}).code == "refused"
        assert box.call("read_file", {"path": "project/taken.md"}).code == "refused"
        assert box.call("grep", {"pattern": CANARY, "path": ""}).text == "no matches"
        told = box.call("write_file", {"path": "project/taken.md", "content": "mine\n"}).text
        assert told == "created project/taken.md (5 bytes)"
        box.call("write_file", {"path": "project/free.md", "content": "mine\n"})
        before = photograph(tmp_path)
        with pytest.raises(StoreConflict) as caught:
            box.commit()
        assert CANARY not in str(caught.value)
        assert photograph(tmp_path) == before
    with Sandbox(policy, roots, in_process=in_process) as box:
        box.call("write_file", {"path": "project/free.md", "content": "mine\n"})
        assert [change.path for change in box.commit().changes] == ["project/free.md"]
    with Sandbox(policy, roots, in_process=in_process) as box:
        box.call("write_file", {"path": "project/TAKEN.md", "content": "mine\n"})
        with pytest.raises((StoreConflict, RememberRefused)):
            box.commit()
