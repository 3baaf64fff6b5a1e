"""Without a repository around it and a workspace that somebody names, nothing is of a project (ADR 0032)."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import muniment
from muniment.cli.app import app
from muniment.errors import InvalidScope

PRIVATE, PROJECT = "The recycling is collected on Tuesdays", "The project uses pnpm workspaces"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A directory to work in, and a home of its own."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("MUNIMENT_HOME", str(tmp_path / "home"))
    return directory


def scopes_of(*facts, **more):
    with muniment.open(**more) as memory:
        return [memory.remember(fact).touched_scopes for fact in facts]


def test_without_a_repository_every_fact_is_the_users_and_no_project_is_made(tmp_path):
    assert scopes_of(PRIVATE, PROJECT) == [("user",), ("user",)]
    assert not (tmp_path / "home" / "projects").exists()
    with muniment.open() as memory, pytest.raises(InvalidScope, match=r"no repository.*--workspace"):
        memory.remember(PROJECT, scope="project")
    asked = CliRunner().invoke(app, ["remember", "--scope", "project", PROJECT])
    assert (asked.exit_code, "name its --workspace DIR" in asked.stderr) == (1, True)


def test_a_workspace_that_is_named_has_a_project_and_keeps_it():
    assert scopes_of(PROJECT, workspace=".") == [("project",)]
    with muniment.open() as memory:
        assert memory.recall("which workspaces does the project use").entries[0].path.startswith("project/")
    again = CliRunner().invoke(app, ["remember", "--workspace", ".", PROJECT])
    assert (again.exit_code, "unchanged" in again.output.lower() or "project" in again.output) == (0, True)


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_in_a_repository_a_fact_about_it_is_the_projects(here, kind):
    (here / ".git").mkdir() if kind == "directory" else (here / ".git").write_text("gitdir: elsewhere\n")
    assert scopes_of(PROJECT) == [("project",)]


def test_a_policy_without_a_user_has_its_project_everywhere(tmp_path):
    team = tmp_path / "team"
    team.mkdir(mode=0o700)
    with muniment.open(policy="team", roots={"team": team}) as memory:
        assert set(memory.place.roots) == {"project", "team"}
