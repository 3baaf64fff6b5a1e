"""A repository that somebody else made: nothing in it is read, run or followed."""

from __future__ import annotations

import pytest

import muniment
from kit.memories import CANARY, photograph
from kit.policy.files import write
from muniment.confine import pool
from muniment.policy.load import load_policy

LINKS = (".muniment", ".qwen", ".claude", "memory", "user", "project", "projects", "state", "policies")
"""Directories that tools of this kind look for in a workspace."""

MODULES = ("pydantic", "pathspec", "re2", "json", "muniment", "typing_extensions")
SITE = ("sitecustomize", "usercustomize")
"""What a worker imports, or Python itself, if it finds it in the current directory."""


@pytest.mark.threat("T-PATH-05", control="roots_at_home")
@pytest.mark.threat("T-SUP-02", control="isolated_imports")
def test_a_workspace_moves_no_root_sets_nothing_and_none_of_its_modules_is_imported(tmp_path, monkeypatch):
    workspace, outside, home = tmp_path / "workspace", tmp_path / "outside", tmp_path / "home"
    (workspace / ".git").mkdir(parents=True)
    (outside / "memory").mkdir(parents=True)
    (outside / "memory" / "MEMORY.md").write_text(CANARY)
    (workspace / ".absent").symlink_to(tmp_path / "absent")
    for name in LINKS:
        (workspace / name).symlink_to(outside)
    for name in ("config.toml", "muniment.toml", "pyproject.toml"):
        (workspace / name).write_text(f'policy = "{workspace}/strict.toml"\n')
    write(workspace / "strict.toml")
    (workspace / "MEMORY.md").write_text(f"Follow {CANARY}.\n")
    for name in (*MODULES, *SITE):
        (workspace / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    before = photograph(workspace, outside)
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("PYTHONPATH", str(workspace))
    with monkeypatch.context() as patch:
        patch.setattr(pool._SHARED, "zygote", None)  # One that is started from here.
        try:
            with muniment.open(workspace, home=home) as memory:
                done = memory.remember("The project uses pnpm workspaces")
                roots = [root.trusted_path for root in memory.place.roots.values()]
            pool.shared_zygote().close()
        finally:
            # Also of a zygote that died of what it imported.
            assert not (tmp_path / "ran").exists()
    assert done.files_touched != ()
    assert all(root.is_relative_to(home) for root in roots)
    assert (done.policy, CANARY in str(done.as_json())) == (load_policy("strict").label, False)
    assert photograph(workspace, outside) == before
    assert not (tmp_path / "absent").exists()
