"""Which memory each directory sees after renames, moves, links, clones and copies; with real git.

Each row has steps and the expected result. Steps are separated by `;`: `keep DIR WORD` stores a fact in a
project (`keep2`: for a user with another home), `git DIR …` runs git, `Users.run_step` implements `repo`,
`write` and `projects`, and anything else is a program. The result is `DIR=WORD`, `a+b` for two facts, `-` for
none, `2:DIR` for the other user.
"""

import json
import shlex
import shutil
import subprocess
from contextlib import closing

import pytest

from kit.cli.commands import invoked
from kit.git import git, needs_git, repository
from muniment.opening import find_place
from muniment.settings import read_settings
from muniment.store.upkeep import view_of

pytestmark = needs_git

M = "repo main; keep main a; "
"""A repository with a fact."""

P = "mkdir -p in/main; keep in/main a; "
"""A directory without git, with a fact."""

S = "repo source; git . clone --quiet source main; keep main a; "
"""A clone with a fact."""

B = M + "git . clone --quiet --bare main bare.git; git bare.git worktree add --quiet ../tree; keep tree b; "
"""A bare clone with a worktree; each has its own facts."""

U = "repo source; git . clone --quiet source main; mkdir main/.git/muniment; keep main a; "
"""A clone with a fact that could not be marked."""

LAYOUTS = {
    # The checkout, renamed and moved.
    "itself": (M, "main=a"),
    "a subfolder": (M + "mkdir -p main/src/deep", "main/src/deep=a"),
    "a link to it": (M + "ln -s main alias", "alias=a main=a"),
    "a chain of links to it": (M + "ln -s main one; ln -s one two", "two=a"),
    "a link to a subfolder": (M + "mkdir main/src; ln -s main/src alias", "alias=a"),
    "renamed": (M + "mv main renamed", "renamed=a"),
    "renamed, absolute link": (M + "mv main renamed; ln -s {here}/renamed main", "renamed=a main=a"),
    "renamed, relative link": (M + "mv main renamed; ln -s renamed main", "main=a renamed=a"),
    "renamed, link with dots": (M + "mkdir x; mv main renamed; ln -s x/../renamed main", "renamed=a main=a"),
    "renamed, link, kept by the link": (
        M + "mv main renamed; ln -s renamed main; keep main b",
        "renamed=a+b main=a+b",
    ),
    "renamed, link, kept at the new name": (
        M + "mv main renamed; ln -s renamed main; keep renamed b",
        "renamed=a+b main=a+b",
    ),
    "renamed, link, subfolder": (
        M + "mkdir main/src; mv main renamed; ln -s renamed main",
        "main/src=a renamed/src=a",
    ),
    "renamed, used, link later": (
        M + "mv main renamed; keep renamed b; ln -s renamed main",
        "main=a+b renamed=a+b",
    ),
    "renamed, link removed": (
        M + "mv main renamed; ln -s renamed main; keep main b; rm main",
        "renamed=a+b",
    ),
    "renamed twice, a chain": (
        M + "mv main two; ln -s two main; mv two three; ln -s three two",
        "main=a two=a three=a",
    ),
    "renamed twice, used between": (
        M + "mv main two; ln -s two main; keep two b; mv two three; ln -s three two",
        "main=a+b two=a+b three=a+b",
    ),
    "renamed twice, first link only": (M + "mv main two; mv two three; ln -s three main", "main=a three=a"),
    "renamed there and back": (
        M + "mv main two; ln -s two main; keep two b; rm main; mv two main; ln -s main two",
        "main=a+b two=a+b",
    ),
    "moved to another folder, link": (M + "mkdir x; mv main x/y; ln -s x/y main", "x/y=a main=a"),
    "two checkouts swap names": (
        M + "repo other; keep other b; mv main t; mv other main; mv t other",
        "main=b other=a",
    ),
    "another one linked at the old name": (
        M + "repo other; keep other b; mv main renamed; ln -s other main",
        "renamed=a main=b other=b",
    ),
    # A folder above it.
    "parent moved": ("repo in/main; keep in/main a; mv in out", "out/main=a"),
    "parent moved, link": ("repo in/main; keep in/main a; mv in out; ln -s out in", "out/main=a in/main=a"),
    "parent moved, absolute link": (
        "repo in/main; keep in/main a; mkdir x; mv in x/out; ln -s {here}/x/out in",
        "x/out/main=a in/main=a",
    ),
    "parent and checkout renamed, both links": (
        "repo in/main; keep in/main a; mv in out; ln -s out in; mv out/main out/new; ln -s new out/main",
        "out/new=a in/new=a in/main=a",
    ),
    "parent moved, link later": (
        "repo in/main; keep in/main a; mv in out; keep out/main b; ln -s out in",
        "out/main=a+b in/main=a+b",
    ),
    # Worktrees.
    "a worktree": (M + "git main worktree add --quiet ../tree", "tree=a"),
    "a worktree, checkout renamed, link": (
        M + "git main worktree add --quiet ../tree; mv main renamed; ln -s renamed main",
        "tree=a renamed=a main=a",
    ),
    "a worktree, checkout renamed": (
        M + "git main worktree add --quiet ../tree; mv main renamed",
        "tree=- renamed=a",
    ),
    "a worktree, checkout renamed, repaired": (
        M + "git main worktree add --quiet ../tree; mv main renamed; git renamed worktree repair {here}/tree",
        "tree=a renamed=a",
    ),
    "a worktree moved by git": (
        M + "git main worktree add --quiet ../tree; git main worktree move {here}/tree {here}/wood",
        "wood=a",
    ),
    "a worktree moved by hand, link": (
        M + "git main worktree add --quiet ../tree; mv tree wood; ln -s wood tree",
        "wood=a tree=a",
    ),
    "a worktree moved by hand": (M + "git main worktree add --quiet ../tree; mv tree wood", "wood=- main=a"),
    "a worktree of a moved parent, link": (
        "repo in/main; keep in/main a; git in/main worktree add --quiet ../tree; mv in out; ln -s out in",
        "out/tree=a in/tree=a out/main=a",
    ),
    # Bare repositories.
    "bare, worktree": (
        M
        + "git . clone --quiet --bare main bare.git; git bare.git worktree add --quiet ../tree; keep tree b",
        "tree=b bare.git=b main=a",
    ),
    "bare renamed, link": (
        B + "mv bare.git new.git; ln -s new.git bare.git",
        "tree=b new.git=b bare.git=b",
    ),
    "bare renamed, repaired": (
        B + "mv bare.git new.git; git new.git worktree repair {here}/tree",
        "tree=b new.git=b",
    ),
    "bare next to its worktrees, parent moved, link": (
        M
        + "mkdir in; git . clone --quiet --bare main in/.bare; write in/.git 'gitdir: ./.bare';"
        + "git in worktree add --quiet tree; keep in/tree b; mv in out; ln -s out in",
        "out/tree=b in/tree=b out=b in=b",
    ),
    # Clones and copies.
    "a clone": (M + "git . clone --quiet main second", "second=- main=a"),
    "a clone, source renamed, link": (
        M + "git . clone --quiet main second; keep second b; mv main renamed; ln -s renamed main",
        "second=b renamed=a main=a",
    ),
    "a clone, linked by a person, renamed, link": (
        M + "git . clone --quiet main second; projects link main second; mv second two; ln -s two second",
        "two=a second=a main=a",
    ),
    "a copy": (M + "cp -r main copy", "copy=- main=a"),
    "a copy, the first one deleted, link": (
        M + "cp -r main copy; rm -r main; ln -s copy main",
        "copy=a main=a",
    ),
    "a copy linked at the old name": (
        M + "cp -r main copy; mv main first; ln -s copy main",
        "copy=a main=a first=-",
    ),
    "a copy with a link next to it": (M + "cp -r main copy; ln -s copy alias", "alias=- main=a"),
    "cloned again to another path, link": (
        S + "rm -rf main;" + "git . clone --quiet source new; ln -s new main",
        "new=- main=-",
    ),
    "cloned again at its place": (
        S + "rm -rf main; git . clone --quiet source main",
        "main=a",
    ),
    # Submodules and repositories inside others.
    "a submodule, superproject renamed, link": (
        M
        + "repo part; git main submodule add --quiet {here}/part part; keep main/part b; mv main renamed;"
        + "ln -s renamed main",
        "renamed/part=b main/part=b renamed=a main=a part=-",
    ),
    "a submodule, superproject moved": (
        M + "repo part; git main submodule add --quiet {here}/part part; keep main/part b; mv main renamed",
        "renamed/part=b renamed=a",
    ),
    "a repository inside another": (
        M + "repo main/inner; keep main/inner b; mv main renamed; ln -s renamed main",
        "renamed/inner=b main/inner=b renamed=a",
    ),
    # Without git.
    "no git": (P, "in/main=a in=-"),
    "no git, renamed": (P + "mv in/main in/new", "in/new=-"),
    "no git, renamed, link": (P + "mv in/main in/new; ln -s new in/main", "in/new=a in/main=a"),
    "no git, renamed, link, kept": (
        P + "mv in/main in/new; ln -s new in/main; keep in/new b; rm in/main",
        "in/new=a+b",
    ),
    "no git, parent moved, link": (P + "mv in out; ln -s out in", "out/main=a in/main=a"),
    "no git, renamed, used, link later": (
        P + "mv in/main in/new; keep in/new b; ln -s new in/main",
        "in/new=b in/main=b",
    ),
    "no git, linked, then git init": (
        P + "mv in/main in/new; ln -s new in/main; keep in/new b; git in/new init --quiet",
        "in/new=a+b in/main=a+b",
    ),
    # Two users of one path.
    "two users": (M + "keep2 main b", "main=a 2:main=b"),
    "two users, renamed, link": (
        M + "keep2 main b; mv main renamed; ln -s renamed main",
        "main=a renamed=a 2:main=b 2:renamed=b",
    ),
    "two users, one of them used it since": (
        M + "keep2 main b; mv main renamed; ln -s renamed main; keep renamed c",
        "main=a+c 2:main=b 2:renamed=b",
    ),
    "another user owns the marks": (
        U + "mv main renamed; ln -s renamed main",
        "renamed=a main=a",
    ),
    "another user owns the marks, foreign repository linked": (
        U + "repo evil; mv main renamed; ln -s evil main",
        "evil=- main=-",
    ),
    "another user owns the marks, foreign remote linked": (
        U + "repo evil; git evil remote add origin https://example.org/e; mv main renamed; ln -s evil main",
        "evil=- main=-",
    ),
    "another user without a memory": (M + "mv main renamed; ln -s renamed main", "2:renamed=- 2:main=-"),
    # Foreign ones.
    "a foreign repository linked at the old name": (
        # It may be the first one without its mark: a question to a person.
        M + "repo evil; mv main renamed; ln -s evil main",
        "evil=- main=- renamed=-",
    ),
    "a foreign repository with a remote linked at the old name": (
        S
        + "repo evil;"
        + "git evil remote add origin https://example.org/evil; mv main renamed; ln -s evil main",
        "evil=- main=- renamed=a",
    ),
    "a foreign repository linked at the place of a deleted one": (
        M + "repo evil; rm -rf main; ln -s evil main",
        "evil=- main=-",
    ),
    "a foreign repository linked at the place of a directory": (
        P + "repo evil; rm -r in/main; ln -s ../evil in/main",
        "evil=- in/main=-",
    ),
    "a foreign .git file linked at the place of a directory": (
        P + "mkdir evil; write evil/.git 'gitdir: ../in'; rm -r in/main; ln -s ../evil in/main",
        "evil=- in/main=-",
    ),
    "a foreign link .git": (M + "mkdir evil; ln -s {here}/main/.git evil/.git", "evil=- main=a"),
    "a foreign link in a repository": (M + "repo evil; ln -s ../main evil/main", "evil=- main=a"),
    "a foreign .git file": (M + "mkdir evil; write evil/.git 'gitdir: ../main/.git'", "evil=- main=a"),
    "a foreign .git file through a link": (
        M + "mv main renamed; ln -s renamed main; mkdir evil; write evil/.git 'gitdir: ../main/.git'",
        "evil=- main=a",
    ),
    "a foreign worktree pointer through a link": (
        M
        + "git main worktree add --quiet ../tree; mv main renamed; ln -s renamed main; mkdir evil;"
        + "write evil/.git 'gitdir: ../main/.git/worktrees/tree'",
        "evil=- tree=a",
    ),
    "a foreign remote": (
        S + "repo evil;" + "git evil remote add origin {here}/source; mv main renamed; ln -s renamed main",
        "evil=- main=a",
    ),
}


class Users:
    """Two users, each with a home, who work under one directory."""

    def __init__(self, here):
        self.here = here

    def home(self, user):
        return self.here.parent / f"home{user}"

    def open_context(self, directory, user, **options):
        settings = read_settings({"MUNIMENT_HOME": str(self.home(user))})
        return closing(find_place(settings, self.here / directory, **options))

    def store_fact(self, directory, word, user=""):
        with self.open_context(directory, user) as context:
            path = context.roots["project"].trusted_path / f"{word}.md"
            path.write_text(f"---\nname: {word}\n---\n{word}\n")

    def list_facts(self, directory, user=""):
        with self.open_context(directory, user, create=False, reads=True) as context:
            if "project" not in context.roots:
                return "-"
            view = view_of(context.state, context.roots["project"], context.policy, sweep=True)
            return "+".join(sorted(each.name for each in view.entries())) or "-"

    def run_step(self, step):
        match shlex.split(step.format(here=self.here)):
            case ["keep" | "keep2" as verb, directory, word]:
                self.store_fact(directory, word, verb[4:])
            case ["repo", directory]:
                repository(self.here / directory)
            case ["write", path, text]:
                (self.here / path).write_text(f"{text}\n")
            case ["git", directory, *arguments]:
                git(self.here / directory, *arguments)
            case ["projects", verb, *arguments, directory]:
                self.run("projects", verb, *arguments, str(self.here / directory))
            case command:
                subprocess.run(command, cwd=self.here, check=True, capture_output=True)

    def run(self, *arguments):
        result = invoked([*arguments, "--json"], {"MUNIMENT_HOME": str(self.home(""))})
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


def run_layout(base, steps, wanted):
    """Run the steps under `base` and return the facts that each wanted directory sees."""
    users = Users(base / "here")
    users.here.mkdir(parents=True)
    for step in filter(str.strip, steps.split(";")):
        users.run_step(step)
    found = {}
    for name in wanted:
        user, _, directory = name.rpartition(":")
        found[name] = users.list_facts(directory, user)
    return found


def test_table_has_at_least_forty_layouts():
    assert len(LAYOUTS) >= 40


@pytest.mark.parametrize("part", range(10))
def test_layouts_see_the_memory_of_the_table(tmp_path, subtests, part):
    for number, (name, (steps, seen)) in enumerate(list(LAYOUTS.items())[part::10]):
        wanted = dict(each.rsplit("=", 1) for each in seen.split())
        # In both orders, because reading changes nothing.
        for order in (wanted, dict(reversed(wanted.items()))):
            base = tmp_path / f"{number}{'r' * (order is not wanted)}"
            with subtests.test(name):
                assert run_layout(base, steps, order) == order
            shutil.rmtree(base)
