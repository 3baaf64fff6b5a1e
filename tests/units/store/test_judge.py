"""Handmade hostile change sets: each is rejected with the right class, and the disk is unchanged."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest

from kit.store.ground import STANDING, STRICT, Claim, Proposed, change_set, claim, lax, new, patience, sha
from muniment import errors
from muniment.errors import QuotaExceeded, Refused
from muniment.kernel.binding import bind
from muniment.kernel.change import ChangeSet
from muniment.kernel.decide import Confinement, Rule
from muniment.kernel.judge import check_paths, judge, look, settle, with_before
from muniment.kernel.names import MAX_FILE_BYTES, MAX_SEGMENT_BYTES, Verb, Via
from muniment.kernel.root import Root
from muniment.sandbox.sandbox import Sandbox, check_budgets
from muniment.store import naming
from muniment.store.erase import EraseGround, erase


def expect_error(ground, error, *changes, **more):
    """Return the error of a commit that changed nothing, and require it of a dry run too."""
    before = ground.photograph()
    with pytest.raises(error) as caught:
        ground.commit(*changes, **more)
    with pytest.raises(error):
        ground.commit(*changes, dry_run=True, **more)
    assert ground.photograph() == before, changes
    return caught.value


def commit_kinds(ground, *changes, **more):
    """Commit and return the kinds of the changes."""
    return [change.kind for change in ground.commit(*changes, **more).changes]


def draft(ground, *changes):
    """Return `changes` with the current contents that the broker finds."""
    whole = change_set(changes)
    return with_before(whole, look([whole], ground.roots, patience()))


def judge_changes(ground, *changes, policy=STRICT, gates=lambda _: None):
    """Judge `changes` without any facts."""
    facts = Mock(**{"alike.return_value": frozenset(), "usage.return_value": (0, 0)})
    known = lambda *_: False  # noqa: E731
    return judge(draft(ground, *changes), policy, ground.roots, gates=gates, facts=facts, known=known)


ESCAPES = {
    **dict.fromkeys(["user/../outside/x.md", "../outside/x.md", "user/topic/../../outside/x.md"], Via.DOTDOT),
    **dict.fromkeys(["/etc/x.md", "/team/x.md", "C:\\x.md", "//host/share/x.md"], Via.ABSOLUTE),
    "user/..": Via.DOTDOT,
    "user/a.md\0.md": Via.NUL,
}


@pytest.mark.threat("T-PATH-01", control="grammar_escapes")
@pytest.mark.threat("T-PATH-01", control="judged_paths")
def test_escaping_path_or_claim_is_always_an_escape(ground):
    for (path, via), clean in product(ESCAPES.items(), (False, True)):
        assert expect_error(ground, errors.PathEscape, new(path), settle_names=clean).via is via, path
        claimed = {"claims": [Claim(path, None)], "settle_names": clean}
        assert expect_error(ground, errors.PathEscape, new("user/n.md"), **claimed).via is via, path


@pytest.mark.threat("T-RUN-08", control="judged_paths")
def test_escape_is_reported_before_any_other_error(ground):
    (ground.user / "link.md").symlink_to(ground.outside / "secret.md")
    wrong = Proposed("user/a.md", None, b"x")
    for other in (new("user//x.md"), new("team/x.md"), new("/memories/user/x.md"), wrong):
        expect_error(ground, errors.PathEscape, other, new("user/../x.md"))
        expect_error(ground, errors.PathEscape, other, new("user/n.md"), claims=[Claim("/etc/passwd", None)])
    assert expect_error(ground, errors.PathEscape, wrong, new("user/link.md")).via is Via.SYMLINK


REFUSED = [
    *("team/a.md", "users/a.md", "/memories/user/x.md", "/user/x.md", "user", "user/x.txt", "user/x"),
    *("user/x.MD", "user/.x.md", "user/.git/x.md", "user/MEMORY.md", "user/memory.md", "user/index/x.md"),
    *("user/pinned/x.md", "user/Pinned/x.md", "user/AGENTS.md", "user/a/b/c.md"),
]

BAD = [
    *("", "/memories/", "user/", "user//x.md", "user/./x.md", "user/x.md/", "user/x\u202e.md", "x" * 3000),
    *("user/con.md", "user/x%2e.md", "user/\uff4d.md", f"user/{'x' * 300}.md", f"user/{'x/' * 20}x.md"),
]


@pytest.mark.threat("T-MEM-12", control="denies")
@pytest.mark.threat("T-RUN-09", control="judged_changes")
def test_invalid_or_denied_name_is_rejected_and_never_repaired(ground):
    rows = {**dict.fromkeys(REFUSED, errors.Refused), **dict.fromkeys(BAD, errors.BadName)}
    for clean in (False, True):
        for path, error in rows.items():
            expect_error(ground, error, new(path), settle_names=clean)
        for name in ("x.txt", "x", "x.MD", ".md", "....md"):  # Independent of the policy.
            expect_error(ground, errors.BadName, new(f"user/{name}"), policy=lax(), settle_names=clean)


def test_undeclared_or_unbound_scope_is_rejected(ground):
    ground.roots.pop("project").close()
    ground.roots["team"] = bind("team", ground.project)
    expect_error(ground, errors.Refused, new("project/x.md"))
    assert expect_error(ground, errors.PathEscape, new("/project/x.md")).via is Via.ABSOLUTE
    assert expect_error(ground, errors.Refused, new("team/x.md")).rule == "scopes"


def test_new_file_must_be_named_like_an_entry(ground):
    for name in ("x.txt", "x", "topic/x.md.sh", "x.MD"):
        with pytest.raises(errors.BadName):
            judge_changes(ground, new(f"user/{name}"), policy=lax())


@pytest.mark.threat("T-PATH-09", control="folding")
def test_duplicate_nested_or_aliased_paths_are_rejected(ground):
    x, inner = "user/x.md", "user/x.md/y.md"
    for paths, clean in product([(x, x), (x, "project/x.md", x), (x, inner), (inner, x)], (False, True)):
        error = expect_error(ground, errors.Refused, *map(new, paths), settle_names=clean)
        assert (error.rule, error.layer) == ("change-set", "judge")
    for pair in ((x, "user/X.md"), ("user/Straße.md", "user/STRASSE.md"), ("user/new/x.md", "user/New/y.md")):
        assert expect_error(ground, errors.Refused, *map(new, pair)).rule == "change-set", pair
    for path in ("user/A.md", "user/TOPIC/x.md", "user/topic/T.md"):  # Aliases of existing paths.
        assert expect_error(ground, errors.StoreConflict, new(path)).paths == (path,)
    # In other directories: no alias.
    paths = ["user/t.md", "user/topic/A.md", "project/A.md", "user/fresh/a.md"]
    assert [change.path for change in ground.commit(*map(new, paths)).changes] == paths
    (ground.user / "A.md").write_bytes(b"other")
    assert commit_kinds(ground, ground.edit("user/a.md")) == ["modify"]


REMOVAL = claim("user/a.md", STANDING["user/a.md"])


def make_policy_without(verb, *, on):
    """A policy that grants everything, with one verb denied on some paths."""
    (layer,) = lax().layers
    denied = Rule(id="kept", verbs=(verb,), paths=(on,))
    return replace(lax(), layers=(replace(layer, deny=(denied,)),))


def test_denied_removal_is_rejected_except_as_an_erasure(ground):
    for verb in (Verb.MODIFY, Verb.DELETE):
        terms = {"policy": make_policy_without(verb, on="/user/a.md")}
        expect_error(ground, errors.Refused, removals=[REMOVAL], **terms)
        assert commit_kinds(ground, removals=[ground.gone("user/topic/t.md")], **terms) == ["delete"]
        (ground.user / "topic" / "t.md").write_bytes(STANDING["user/topic/t.md"])
    where = EraseGround(
        ground.state, ground.roots, make_policy_without(Verb.MODIFY, on="/user/**"), patience()
    )
    erase("user/a.md", where)
    assert not (ground.user / "a.md").exists()
    assert (ground.user / "topic" / "t.md").exists()


def test_removal_of_a_changed_file_is_a_conflict(ground):
    for change in (lambda path: path.write_bytes(b"other"), os.unlink):
        change(ground.user / "a.md")
        assert expect_error(ground, errors.StoreConflict, removals=[REMOVAL]).paths == ("user/a.md",)


def test_removals_count_in_the_budget_of_a_run_only(ground):
    more = [new(f"user/{number}.md") for number in range(8)]
    with pytest.raises(errors.BudgetSpent):
        check_budgets(change_set(more, (), [REMOVAL]), STRICT)
    assert len(commit_kinds(ground, *more, removals=[REMOVAL])) == 9


def test_removal_frees_quota_but_not_its_name(ground):
    expect_error(ground, errors.StoreConflict, new("user/A.md"), removals=[REMOVAL])
    policy = lax(max_files=2)
    expect_error(ground, errors.QuotaExceeded, new("user/n.md"), policy=policy)
    assert commit_kinds(ground, new("user/n.md"), removals=[REMOVAL], policy=policy) == ["create", "delete"]
    assert commit_kinds(ground, new("user/A.md")) == ["create"]


def test_wrong_base_of_a_change_is_a_conflict(ground):
    absent = Proposed("user/x.md", sha(b"x"), b"y")
    expect_error(ground, errors.StoreConflict, absent)
    expect_error(ground, errors.StoreConflict, absent, settle_names=True)
    expect_error(ground, errors.StoreConflict, Proposed("user/none/x.md", sha(b"x"), b"y"))
    for base in (sha(b"wrong"), "", "A" * 64, sha(STANDING["user/a.md"]).upper()):
        expect_error(ground, errors.StoreConflict, Proposed("user/a.md", base, b"y"))
    changes = [new("user/a.md"), new("user/n.md"), new("user/topic/t.md")]
    assert expect_error(ground, errors.StoreConflict, *changes).paths == ("user/a.md", "user/topic/t.md")
    (ground.user / "a.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))  # It cannot be read.
    expect_error(ground, errors.StoreConflict, Proposed("user/a.md", sha(b"x"), b"y"))


@pytest.mark.threat("T-RUN-09", control="judged_claims")
def test_false_claims_are_conflicts_and_all_are_named(ground):
    claims = [
        *(claim("user/a.md", b"lie"), ground.gone("user/topic/t.md"), claim("project/p.md", None)),
        *(claim("user/none.md", b"x"), claim("user", b"x"), claim("user/topic", None)),
    ]
    error = expect_error(ground, errors.StoreConflict, new("user/n.md"), claims=claims)
    assert error.paths == ("project/p.md", "user", "user/a.md", "user/none.md", "user/topic")
    for path in ("user/topic", "user"):  # An unreadable path matches no claim.
        expect_error(ground, errors.StoreConflict, new("user/n.md"), claims=[Claim(path, "unreadable")])
    for path, kind in (("team/a.md", errors.Refused), ("user//a.md", errors.BadName)):
        expect_error(ground, kind, new("user/n.md"), claims=[Claim(path, None)])


def test_many_claims_end_at_the_deadline_and_read_a_path_once(ground, monkeypatch):
    read, real = [], Root.read_bytes
    flood = change_set((), [claim(f"user/{number}.md", None) for number in range(1000)])
    ends = Mock(**{"check.side_effect": [None, None, None, errors.DeadlineExceeded("the deadline passed")]})
    with pytest.raises(errors.DeadlineExceeded):
        look([flood], ground.roots, ends)
    counting = lambda self, path, *more: (read.append(path.rel), real(self, path, *more))[1]  # noqa: E731
    monkeypatch.setattr(Root, "read_bytes", counting)
    flood = change_set((), [REMOVAL] * 1000)
    assert settle([flood], look([flood], ground.roots, patience())) == ((flood,), ())
    assert read == ["a.md"]


KINDS = {
    "symlink": lambda path, outside: path.symlink_to(outside / "secret.md"),
    "dangling": lambda path, outside: path.symlink_to(outside / "nothing.md"),
    "directory link": lambda path, outside: path.symlink_to(outside),
    "hard link": lambda path, outside: os.link(outside / "secret.md", path),
    "fifo": lambda path, _: os.mkfifo(path),
    "file": lambda path, _: path.touch(),
}

VIAS = {"hard link": Via.HARDLINK, "fifo": Via.SPECIAL}


@pytest.mark.threat("T-PATH-03", control="resolvers")
def test_links_and_special_files_are_escapes_for_claims_too(ground):
    path = ground.user / "x.md"
    for kind, make in KINDS.items():
        make(path, ground.outside)
        if kind != "file":
            for base in (None, sha(b"secret\n")):
                error = expect_error(ground, errors.PathEscape, Proposed("user/x.md", base, b"mine"))
                assert error.via is VIAS.get(kind, Via.SYMLINK), kind
        expect_error(ground, errors.NotAFile if kind == "file" else errors.PathEscape, new("user/x.md/y.md"))
        path.unlink()
    path.mkdir()
    expect_error(ground, errors.StoreConflict, new("user/x.md"))
    (ground.user / "out").symlink_to(ground.outside)
    expect_error(
        ground, errors.PathEscape, new("user/n.md"), claims=[claim("user/out/secret.md", b"secret\n")]
    )


def test_unreadable_parent_is_a_conflict(ground, monkeypatch):
    monkeypatch.setattr(Root, "examine", Mock(side_effect=errors.Unreadable("no")))
    with pytest.raises(errors.StoreConflict):
        judge_changes(ground, new("user/topic/x.md"))


GATES = {"control": "\x07", "ansi": "\x1b[31m", "bidi": "\u202e", "tag-chars": "\U000e0041"}

GATES["zero-width"] = "\u200b"


@pytest.mark.threat("T-MEM-09", control="content_gates")
def test_content_is_checked_after_stamping_and_must_be_utf_8(ground):
    for content in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"a\0b", b"\xf0\x9f\x98"):
        expect_error(ground, errors.ToolError, new("user/x.md", content))
        expect_error(ground, errors.ToolError, ground.edit("user/a.md", content))
    for gate, char in GATES.items():
        content = f"# fine\nnot {char} fine\n".encode()
        assert expect_error(ground, errors.ContentRejected, new("user/x.md", content)).rule == gate
        expect_error(ground, errors.ContentRejected, new("user/ok.md"), ground.edit("user/a.md", content))
    escaped = b'---\nname: "fine \\u202e not"\ndescription: D\n---\nbody\n'
    assert expect_error(ground, errors.ContentRejected, new("user/x.md", escaped)).rule == "bidi"
    expect_error(ground, errors.ContentRejected, new("user/x.md"), stamp=lambda _data, *_rest: b"\x1b[0m")
    expect_error(ground, errors.ContentRejected, new("user/x.md", b"\x1b[0m"))
    # Removed or previous text is not checked.
    (ground.user / "b.md").write_bytes(b"\x1b[0m")
    ground.commit(removals=[claim("user/b.md", b"\x1b[0m")])
    expect_error(ground, errors.ContentRejected, new("user/x.md", b"\x1b[0m"))
    assert commit_kinds(ground, new("user/b.md", b"\x1b[0m")) == ["create"]


def test_rejected_text_may_shrink_if_it_is_our_own(ground):
    open_policy = replace(STRICT, content=replace(STRICT.content, reject=()))
    cut, whole = b"# N\nnot \x1b[0m fine\n", b"# N\nnot \x1b[0m fine\nmore\n"
    (ground.user / "theirs.md").write_bytes(whole)
    expect_error(ground, errors.ContentRejected, ground.edit("user/theirs.md", cut))
    ground.commit(new("user/ours.md", whole), policy=open_policy)
    expect_error(ground, errors.ContentRejected, ground.edit("user/ours.md", b"# N\nother \x1b[0m\n"))
    assert commit_kinds(ground, ground.edit("user/ours.md", cut)) == ["modify"]
    (ground.user / "odd.md").write_bytes("\x1b[0m\nzero\u200bwidth\n".encode())
    expect_error(ground, errors.ContentRejected, ground.edit("user/odd.md", "zero\u200bwidth\n".encode()))


def test_file_one_byte_above_the_maximum_is_too_large(ground):
    policy = lax(write_bytes=1 << 30)
    expect_error(ground, errors.TooLarge, new("user/x.md", b"x" * (MAX_FILE_BYTES + 1)), policy=policy)
    ground.commit(new("user/x.md", b"x" * MAX_FILE_BYTES), policy=policy)
    assert (ground.user / "x.md").stat().st_size == MAX_FILE_BYTES


@pytest.mark.threat("T-RUN-01", control="judged_budgets")
def test_run_over_its_budget_is_rejected_before_any_write(ground, monkeypatch):
    monkeypatch.setattr("muniment.sandbox.tools.workbench.Workbench.change_set", lambda _: proposed)
    before, roots = ground.photograph(), {"user": ground.user}
    policy = replace(lax(write_bytes=10), confinement=Confinement(require="none"))
    with Sandbox(policy, roots, in_process=True) as box:
        box.call("ls", {"path": "user"})
        for paths, size in ((range(9), 0), (range(2), 6)):
            proposed = change_set(new(f"user/{number}.md", b"x" * size) for number in paths)
            with pytest.raises(errors.RememberRefused, match="than a run may write"):
                box.commit()
            assert ground.photograph() == before
        proposed = change_set(new(f"user/{number}.md", b"x" * 5) for number in range(2))
        assert len(box.commit().changes) == 2


def test_quotas_limit_files_and_bytes_of_a_scope(ground):
    def expect_quota_error(policy, *changes):
        return expect_error(ground, errors.QuotaExceeded, *changes, policy=policy)

    policy = lax(max_file_bytes=12)
    assert "12 bytes" in str(expect_quota_error(policy, new("user/x.md", b"x" * 13)))
    expect_quota_error(policy, ground.edit("user/a.md", b"x" * 13))
    policy = lax(max_total_bytes=30)  # `user` has 20 bytes, `project` 12.
    expect_quota_error(policy, new("user/x.md", b"x" * 11))
    expect_quota_error(policy, ground.edit("user/a.md", b"x" * 21))
    ground.commit(new("user/x.md", b"x" * 10), new("project/x.md", b"x" * 10), policy=policy)
    policy = lax(max_file_bytes=12, max_files=4)
    expect_quota_error(policy, new("user/y.md"), new("user/z.md"))
    ground.commit(new("user/y.md", b"x" * 12), new("project/y.md"), policy=policy)
    expect_quota_error(policy, new("user/z.md"))
    ground.commit(ground.edit("user/x.md"), policy=policy)
    # A quota counts only the files that match its patterns.
    narrow = replace(lax(max_files=1).quotas[0], paths=("/user/topic/**",), id="topics")
    policy = replace(lax(), quotas=(narrow, lax().quotas[0]))
    ground.commit(new("user/z.md"), policy=policy)
    expect_quota_error(policy, new("user/topic/x.md"))


def test_scope_over_its_quota_may_shrink_but_not_grow(ground):
    policy = lax(max_total_bytes=5, max_files=1)
    a, t = "user/a.md", "user/topic/t.md"
    for contents in ({a: b"x" * 9}, {a: b"y" * 9}, {a: b"y" * 6, t: b"z" * 13}):
        ground.commit(*(ground.edit(path, content) for path, content in contents.items()), policy=policy)
    expect_error(ground, errors.QuotaExceeded, ground.edit(a, b"y" * 7), policy=policy)
    expect_error(ground, errors.QuotaExceeded, new("user/x.md", b""), policy=policy)


def test_changes_get_the_content_on_disk_and_empty_sets_pass(ground):
    check_paths(ChangeSet())
    assert settle([ChangeSet()], {}) == ((ChangeSet(),), ())
    assert judge_changes(ground).change_set == ChangeSet()
    (only,) = draft(ground, ground.edit("user/a.md", b"after")).changes
    assert only.path.text == "user/a.md"
    assert (only.before, only.after) == (STANDING["user/a.md"], b"after")


# -- A run that may not know existing names gets other names, never a conflict, and cannot bypass a denial.


def commit_settled(ground, *paths, **more):
    done = ground.commit(*map(new, paths), settle_names=True, policy=lax(), **more)
    assert [change.kind for change in done.changes] == ["create"] * len(paths)
    return [change.path for change in done.changes]


def test_folder_that_differs_only_by_case_is_reused(ground):
    requested = "user/TOPIC/n.md", "user/Topic/T.md", "user/New/a.md", "user/new/a.md"
    settled = ["user/topic/n.md", "user/topic/T-2.md", "user/New/a.md", "user/New/a-2.md"]
    assert commit_settled(ground, *requested) == settled


def test_obstacle_at_a_path_is_neither_followed_nor_replaced(ground):
    secret = ground.outside / "secret.md"
    kinds = {"f": Path.touch, "l": lambda path: path.symlink_to(ground.outside), "p": os.mkfifo}
    for name, make in kinds.items():
        make(ground.user / name)
        upper = f"user/{name.upper()}"
        assert commit_settled(ground, f"{upper}/n.md", f"user/{name}/n.md") == [
            f"{upper}-2/n.md",
            f"{upper}-2/n-2.md",
        ]
        assert commit_settled(ground, f"user/{name}/n.md") == [f"{upper}-2/n-3.md"]
    (ground.user / "n.md").symlink_to(secret)
    os.link(secret, ground.user / "h.md")
    assert commit_settled(ground, "user/n.md", "user/h.md") == ["user/n-2.md", "user/h-2.md"]
    assert {path: path.read_bytes() for path in ground.outside.iterdir()} == {secret: b"secret\n"}


def test_another_name_bypasses_no_denial_and_replaces_nothing(ground):
    for path in ("user/MEMORY.md", "user/index/x.md", "user/pinned/x.md", "user/AGENTS.md"):
        (ground.base / path).parent.mkdir(exist_ok=True)
        (ground.base / path).write_bytes(b"")
        before = ground.photograph()
        with pytest.raises(Refused):
            ground.commit(new(path), settle_names=True)
    (layer,) = lax().layers
    (rule,) = layer.allow
    creating = replace(layer, allow=(replace(rule, verbs=("create",)),))
    policy = replace(lax(), layers=(creating,))
    with pytest.raises(Refused):
        ground.commit(ground.edit("user/a.md"), settle_names=True, policy=policy)
    assert ground.photograph() == before
    claims = [claim("user/a.md", None), claim("user/topic/t.md", b"guessed")]  # They are ignored.
    assert commit_settled(ground, "user/a.md", claims=claims) == ["user/a-2.md"]


def test_too_long_name_is_cut_between_characters(ground, monkeypatch):
    for char in "xé語😀":
        stem = (char * MAX_SEGMENT_BYTES).encode()[: MAX_SEGMENT_BYTES - 3].decode(errors="ignore")
        assert commit_settled(ground, f"user/{stem}.md") == [f"user/{stem}.md"]
        monkeypatch.setattr(naming, "MAX_SUFFIX", 11)
        for number in range(2, 12 if char == "語" else 4):
            (path,) = commit_settled(ground, f"user/{stem}.md")
            name = path.removeprefix("user/")
            assert name.endswith(f"{char}-{number}.md")
            assert len(name.encode()) <= MAX_SEGMENT_BYTES
            assert stem.startswith(name.removesuffix(f"-{number}.md"))
    monkeypatch.setattr(naming, "MAX_SUFFIX", 3)
    before = ground.photograph()
    with pytest.raises(QuotaExceeded):
        commit_settled(ground, f"user/{stem}.md")
    assert ground.photograph() == before
