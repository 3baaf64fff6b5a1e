"""Handmade hostile change sets: each is rejected with the right class, and the disk is unchanged."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest

from kit.store.bench import (
    INITIAL_FILES,
    STRICT,
    Claim,
    ProposedFile,
    compute_digest,
    make_change_set,
    make_claim,
    make_deadline,
    make_lax_policy,
    propose_new,
)
from muniment import errors
from muniment.errors import QuotaExceeded, Refused
from muniment.kernel.binding import bind
from muniment.kernel.change import ChangeSet
from muniment.kernel.decide import ConfinementRequirement, Rule
from muniment.kernel.judge import check_paths, drop_conflicting, fill_before, judge, read_current
from muniment.kernel.names import MAX_FILE_BYTES, MAX_SEGMENT_BYTES, Verb, Via
from muniment.kernel.root import Root
from muniment.sandbox.sandbox import Sandbox, check_budgets
from muniment.store import naming
from muniment.store.erase import EraseContext, erase


def expect_error(ground, error, *changes, **more):
    """Return the error of a commit that changed nothing, and require it of a dry run too."""
    before = ground.take_snapshot()
    with pytest.raises(error) as caught:
        ground.commit(*changes, **more)
    with pytest.raises(error):
        ground.commit(*changes, dry_run=True, **more)
    assert ground.take_snapshot() == before, changes
    return caught.value


def commit_kinds(ground, *changes, **more):
    """Commit and return the kinds of the changes."""
    return [change.kind for change in ground.commit(*changes, **more).changes]


def draft(ground, *changes):
    """Return `changes` with the current contents that the broker finds."""
    whole = make_change_set(changes)
    return fill_before(whole, read_current([whole], ground.roots, make_deadline()))


def judge_changes(ground, *changes, policy=STRICT, gates=lambda _: None):
    """Judge `changes` without any facts."""
    facts = Mock(**{"find_aliases.return_value": frozenset(), "usage.return_value": (0, 0)})
    known = lambda *_: False  # noqa: E731
    return judge(draft(ground, *changes), policy, ground.roots, gates=gates, root_info=facts, is_known=known)


ESCAPES = {
    **dict.fromkeys(["user/../outside/x.md", "../outside/x.md", "user/topic/../../outside/x.md"], Via.DOTDOT),
    **dict.fromkeys(["/etc/x.md", "/team/x.md", "C:\\x.md", "//host/share/x.md"], Via.ABSOLUTE),
    "user/..": Via.DOTDOT,
    "user/a.md\0.md": Via.NUL,
}


@pytest.mark.threat("T-PATH-01", control="grammar_escapes")
@pytest.mark.threat("T-PATH-01", control="judged_paths")
def test_escaping_path_or_claim_is_always_an_escape(store_bench):
    for (path, via), clean in product(ESCAPES.items(), (False, True)):
        assert (
            expect_error(store_bench, errors.PathEscape, propose_new(path), should_resolve_names=clean).via
            is via
        ), path
        claimed = {"claims": [Claim(path, None)], "should_resolve_names": clean}
        assert expect_error(store_bench, errors.PathEscape, propose_new("user/n.md"), **claimed).via is via, (
            path
        )


@pytest.mark.threat("T-RUN-08", control="judged_paths")
def test_escape_is_reported_before_any_other_error(store_bench):
    (store_bench.user / "link.md").symlink_to(store_bench.outside / "secret.md")
    wrong = ProposedFile("user/a.md", None, b"x")
    for other in (
        propose_new("user//x.md"),
        propose_new("team/x.md"),
        propose_new("/memories/user/x.md"),
        wrong,
    ):
        expect_error(store_bench, errors.PathEscape, other, propose_new("user/../x.md"))
        expect_error(
            store_bench,
            errors.PathEscape,
            other,
            propose_new("user/n.md"),
            claims=[Claim("/etc/passwd", None)],
        )
    assert expect_error(store_bench, errors.PathEscape, wrong, propose_new("user/link.md")).via is Via.SYMLINK


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
def test_invalid_or_denied_name_is_rejected_and_never_repaired(store_bench):
    rows = {**dict.fromkeys(REFUSED, errors.Refused), **dict.fromkeys(BAD, errors.BadName)}
    for clean in (False, True):
        for path, error in rows.items():
            expect_error(store_bench, error, propose_new(path), should_resolve_names=clean)
        for name in ("x.txt", "x", "x.MD", ".md", "....md"):  # Independent of the policy.
            expect_error(
                store_bench,
                errors.BadName,
                propose_new(f"user/{name}"),
                policy=make_lax_policy(),
                should_resolve_names=clean,
            )


def test_undeclared_or_unbound_scope_is_rejected(store_bench):
    store_bench.roots.pop("project").close()
    store_bench.roots["team"] = bind("team", store_bench.project)
    expect_error(store_bench, errors.Refused, propose_new("project/x.md"))
    assert expect_error(store_bench, errors.PathEscape, propose_new("/project/x.md")).via is Via.ABSOLUTE
    assert expect_error(store_bench, errors.Refused, propose_new("team/x.md")).rule == "scopes"


def test_new_file_must_be_named_like_an_entry(store_bench):
    for name in ("x.txt", "x", "topic/x.md.sh", "x.MD"):
        with pytest.raises(errors.BadName):
            judge_changes(store_bench, propose_new(f"user/{name}"), policy=make_lax_policy())


@pytest.mark.threat("T-PATH-09", control="folding")
def test_duplicate_nested_or_aliased_paths_are_rejected(store_bench):
    x, inner = "user/x.md", "user/x.md/y.md"
    for paths, clean in product([(x, x), (x, "project/x.md", x), (x, inner), (inner, x)], (False, True)):
        error = expect_error(
            store_bench, errors.Refused, *map(propose_new, paths), should_resolve_names=clean
        )
        assert (error.rule, error.layer) == ("change-set", "judge")
    for pair in ((x, "user/X.md"), ("user/Straße.md", "user/STRASSE.md"), ("user/new/x.md", "user/New/y.md")):
        assert expect_error(store_bench, errors.Refused, *map(propose_new, pair)).rule == "change-set", pair
    for path in ("user/A.md", "user/TOPIC/x.md", "user/topic/T.md"):  # Aliases of existing paths.
        assert expect_error(store_bench, errors.StoreConflict, propose_new(path)).paths == (path,)
    # In other directories: no alias.
    paths = ["user/t.md", "user/topic/A.md", "project/A.md", "user/fresh/a.md"]
    assert [change.path for change in store_bench.commit(*map(propose_new, paths)).changes] == paths
    (store_bench.user / "A.md").write_bytes(b"other")
    assert commit_kinds(store_bench, store_bench.propose_edit("user/a.md")) == ["modify"]


REMOVAL = make_claim("user/a.md", INITIAL_FILES["user/a.md"])


def make_policy_without(verb, *, on):
    """A policy that grants everything, with one verb denied on some paths."""
    (layer,) = make_lax_policy().layers
    denied = Rule(id="kept", verbs=(verb,), paths=(on,))
    return replace(make_lax_policy(), layers=(replace(layer, deny=(denied,)),))


def test_denied_removal_is_rejected_except_as_an_erasure(store_bench):
    for verb in (Verb.MODIFY, Verb.DELETE):
        terms = {"policy": make_policy_without(verb, on="/user/a.md")}
        expect_error(store_bench, errors.Refused, removals=[REMOVAL], **terms)
        assert commit_kinds(
            store_bench, removals=[store_bench.claim_removal("user/topic/t.md")], **terms
        ) == ["delete"]
        (store_bench.user / "topic" / "t.md").write_bytes(INITIAL_FILES["user/topic/t.md"])
    where = EraseContext(
        store_bench.state, store_bench.roots, make_policy_without(Verb.MODIFY, on="/user/**"), make_deadline()
    )
    erase("user/a.md", where)
    assert not (store_bench.user / "a.md").exists()
    assert (store_bench.user / "topic" / "t.md").exists()


def test_removal_of_a_changed_file_is_a_conflict(store_bench):
    for change in (lambda path: path.write_bytes(b"other"), os.unlink):
        change(store_bench.user / "a.md")
        assert expect_error(store_bench, errors.StoreConflict, removals=[REMOVAL]).paths == ("user/a.md",)


def test_removals_count_in_the_budget_of_a_run_only(store_bench):
    more = [propose_new(f"user/{number}.md") for number in range(8)]
    with pytest.raises(errors.BudgetSpent):
        check_budgets(make_change_set(more, (), [REMOVAL]), STRICT)
    assert len(commit_kinds(store_bench, *more, removals=[REMOVAL])) == 9


def test_removal_frees_quota_but_not_its_name(store_bench):
    expect_error(store_bench, errors.StoreConflict, propose_new("user/A.md"), removals=[REMOVAL])
    policy = make_lax_policy(max_files=2)
    expect_error(store_bench, errors.QuotaExceeded, propose_new("user/n.md"), policy=policy)
    assert commit_kinds(store_bench, propose_new("user/n.md"), removals=[REMOVAL], policy=policy) == [
        "create",
        "delete",
    ]
    assert commit_kinds(store_bench, propose_new("user/A.md")) == ["create"]


def test_wrong_base_of_a_change_is_a_conflict(store_bench):
    absent = ProposedFile("user/x.md", compute_digest(b"x"), b"y")
    expect_error(store_bench, errors.StoreConflict, absent)
    expect_error(store_bench, errors.StoreConflict, absent, should_resolve_names=True)
    expect_error(
        store_bench, errors.StoreConflict, ProposedFile("user/none/x.md", compute_digest(b"x"), b"y")
    )
    for base in (compute_digest(b"wrong"), "", "A" * 64, compute_digest(INITIAL_FILES["user/a.md"]).upper()):
        expect_error(store_bench, errors.StoreConflict, ProposedFile("user/a.md", base, b"y"))
    changes = [propose_new("user/a.md"), propose_new("user/n.md"), propose_new("user/topic/t.md")]
    assert expect_error(store_bench, errors.StoreConflict, *changes).paths == ("user/a.md", "user/topic/t.md")
    (store_bench.user / "a.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))  # It cannot be read.
    expect_error(store_bench, errors.StoreConflict, ProposedFile("user/a.md", compute_digest(b"x"), b"y"))


@pytest.mark.threat("T-RUN-09", control="judged_claims")
def test_false_claims_are_conflicts_and_all_are_named(store_bench):
    claims = [
        *(
            make_claim("user/a.md", b"lie"),
            store_bench.claim_removal("user/topic/t.md"),
            make_claim("project/p.md", None),
        ),
        *(make_claim("user/none.md", b"x"), make_claim("user", b"x"), make_claim("user/topic", None)),
    ]
    error = expect_error(store_bench, errors.StoreConflict, propose_new("user/n.md"), claims=claims)
    assert error.paths == ("project/p.md", "user", "user/a.md", "user/none.md", "user/topic")
    for path in ("user/topic", "user"):  # An unreadable path matches no claim.
        expect_error(
            store_bench, errors.StoreConflict, propose_new("user/n.md"), claims=[Claim(path, "unreadable")]
        )
    for path, kind in (("team/a.md", errors.Refused), ("user//a.md", errors.BadName)):
        expect_error(store_bench, kind, propose_new("user/n.md"), claims=[Claim(path, None)])


def test_many_claims_end_at_the_deadline_and_read_a_path_once(store_bench, monkeypatch):
    read, real = [], Root.read_bytes
    flood = make_change_set((), [make_claim(f"user/{number}.md", None) for number in range(1000)])
    ends = Mock(**{"check.side_effect": [None, None, None, errors.DeadlineExceeded("the deadline passed")]})
    with pytest.raises(errors.DeadlineExceeded):
        read_current([flood], store_bench.roots, ends)
    counting = lambda self, path, *more: (read.append(path.rel), real(self, path, *more))[1]  # noqa: E731
    monkeypatch.setattr(Root, "read_bytes", counting)
    flood = make_change_set((), [REMOVAL] * 1000)
    assert drop_conflicting([flood], read_current([flood], store_bench.roots, make_deadline())) == (
        (flood,),
        (),
    )
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
def test_links_and_special_files_are_escapes_for_claims_too(store_bench):
    path = store_bench.user / "x.md"
    for kind, make in KINDS.items():
        make(path, store_bench.outside)
        if kind != "file":
            for base in (None, compute_digest(b"secret\n")):
                error = expect_error(store_bench, errors.PathEscape, ProposedFile("user/x.md", base, b"mine"))
                assert error.via is VIAS.get(kind, Via.SYMLINK), kind
        expect_error(
            store_bench,
            errors.NotAFile if kind == "file" else errors.PathEscape,
            propose_new("user/x.md/y.md"),
        )
        path.unlink()
    path.mkdir()
    expect_error(store_bench, errors.StoreConflict, propose_new("user/x.md"))
    (store_bench.user / "out").symlink_to(store_bench.outside)
    expect_error(
        store_bench,
        errors.PathEscape,
        propose_new("user/n.md"),
        claims=[make_claim("user/out/secret.md", b"secret\n")],
    )


def test_unreadable_parent_is_a_conflict(store_bench, monkeypatch):
    monkeypatch.setattr(Root, "examine", Mock(side_effect=errors.Unreadable("no")))
    with pytest.raises(errors.StoreConflict):
        judge_changes(store_bench, propose_new("user/topic/x.md"))


GATES = {"control": "\x07", "ansi": "\x1b[31m", "bidi": "\u202e", "tag-chars": "\U000e0041"}

GATES["zero-width"] = "\u200b"


@pytest.mark.threat("T-MEM-09", control="content_gates")
def test_content_is_checked_after_stamping_and_must_be_utf_8(store_bench):
    for content in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"a\0b", b"\xf0\x9f\x98"):
        expect_error(store_bench, errors.ToolError, propose_new("user/x.md", content))
        expect_error(store_bench, errors.ToolError, store_bench.propose_edit("user/a.md", content))
    for gate, char in GATES.items():
        content = f"# fine\nnot {char} fine\n".encode()
        assert (
            expect_error(store_bench, errors.ContentRejected, propose_new("user/x.md", content)).rule == gate
        )
        expect_error(
            store_bench,
            errors.ContentRejected,
            propose_new("user/ok.md"),
            store_bench.propose_edit("user/a.md", content),
        )
    escaped = b'---\nname: "fine \\u202e not"\ndescription: D\n---\nbody\n'
    assert expect_error(store_bench, errors.ContentRejected, propose_new("user/x.md", escaped)).rule == "bidi"
    expect_error(
        store_bench, errors.ContentRejected, propose_new("user/x.md"), stamp=lambda _data, *_rest: b"\x1b[0m"
    )
    expect_error(store_bench, errors.ContentRejected, propose_new("user/x.md", b"\x1b[0m"))
    # Removed or previous text is not checked.
    (store_bench.user / "b.md").write_bytes(b"\x1b[0m")
    store_bench.commit(removals=[make_claim("user/b.md", b"\x1b[0m")])
    expect_error(store_bench, errors.ContentRejected, propose_new("user/x.md", b"\x1b[0m"))
    assert commit_kinds(store_bench, propose_new("user/b.md", b"\x1b[0m")) == ["create"]


def test_rejected_text_may_shrink_if_it_is_our_own(store_bench):
    open_policy = replace(STRICT, content=replace(STRICT.content, reject=()))
    cut, whole = b"# N\nnot \x1b[0m fine\n", b"# N\nnot \x1b[0m fine\nmore\n"
    (store_bench.user / "theirs.md").write_bytes(whole)
    expect_error(store_bench, errors.ContentRejected, store_bench.propose_edit("user/theirs.md", cut))
    store_bench.commit(propose_new("user/ours.md", whole), policy=open_policy)
    expect_error(
        store_bench, errors.ContentRejected, store_bench.propose_edit("user/ours.md", b"# N\nother \x1b[0m\n")
    )
    assert commit_kinds(store_bench, store_bench.propose_edit("user/ours.md", cut)) == ["modify"]
    (store_bench.user / "odd.md").write_bytes("\x1b[0m\nzero\u200bwidth\n".encode())
    expect_error(
        store_bench,
        errors.ContentRejected,
        store_bench.propose_edit("user/odd.md", "zero\u200bwidth\n".encode()),
    )


def test_file_one_byte_above_the_maximum_is_too_large(store_bench):
    policy = make_lax_policy(write_bytes=1 << 30)
    expect_error(
        store_bench, errors.TooLarge, propose_new("user/x.md", b"x" * (MAX_FILE_BYTES + 1)), policy=policy
    )
    store_bench.commit(propose_new("user/x.md", b"x" * MAX_FILE_BYTES), policy=policy)
    assert (store_bench.user / "x.md").stat().st_size == MAX_FILE_BYTES


@pytest.mark.threat("T-RUN-01", control="judged_budgets")
def test_run_over_its_budget_is_rejected_before_any_write(store_bench, monkeypatch):
    monkeypatch.setattr("muniment.sandbox.tools.workbench.Workbench.change_set", lambda _: proposed)
    before, roots = store_bench.take_snapshot(), {"user": store_bench.user}
    policy = replace(make_lax_policy(write_bytes=10), confinement=ConfinementRequirement(require="none"))
    with Sandbox(policy, roots, in_process=True) as box:
        box.call("ls", {"path": "user"})
        for paths, size in ((range(9), 0), (range(2), 6)):
            proposed = make_change_set(propose_new(f"user/{number}.md", b"x" * size) for number in paths)
            with pytest.raises(errors.RememberRefused, match="than a run may write"):
                box.commit()
            assert store_bench.take_snapshot() == before
        proposed = make_change_set(propose_new(f"user/{number}.md", b"x" * 5) for number in range(2))
        assert len(box.commit().changes) == 2


def test_quotas_limit_files_and_bytes_of_a_scope(store_bench):
    def expect_quota_error(policy, *changes):
        return expect_error(store_bench, errors.QuotaExceeded, *changes, policy=policy)

    policy = make_lax_policy(max_file_bytes=12)
    assert "12 bytes" in str(expect_quota_error(policy, propose_new("user/x.md", b"x" * 13)))
    expect_quota_error(policy, store_bench.propose_edit("user/a.md", b"x" * 13))
    policy = make_lax_policy(max_total_bytes=30)  # `user` has 20 bytes, `project` 12.
    expect_quota_error(policy, propose_new("user/x.md", b"x" * 11))
    expect_quota_error(policy, store_bench.propose_edit("user/a.md", b"x" * 21))
    store_bench.commit(
        propose_new("user/x.md", b"x" * 10), propose_new("project/x.md", b"x" * 10), policy=policy
    )
    policy = make_lax_policy(max_file_bytes=12, max_files=4)
    expect_quota_error(policy, propose_new("user/y.md"), propose_new("user/z.md"))
    store_bench.commit(propose_new("user/y.md", b"x" * 12), propose_new("project/y.md"), policy=policy)
    expect_quota_error(policy, propose_new("user/z.md"))
    store_bench.commit(store_bench.propose_edit("user/x.md"), policy=policy)
    # A quota counts only the files that match its patterns.
    narrow = replace(make_lax_policy(max_files=1).quotas[0], paths=("/user/topic/**",), id="topics")
    policy = replace(make_lax_policy(), quotas=(narrow, make_lax_policy().quotas[0]))
    store_bench.commit(propose_new("user/z.md"), policy=policy)
    expect_quota_error(policy, propose_new("user/topic/x.md"))


def test_scope_over_its_quota_may_shrink_but_not_grow(store_bench):
    policy = make_lax_policy(max_total_bytes=5, max_files=1)
    a, t = "user/a.md", "user/topic/t.md"
    for contents in ({a: b"x" * 9}, {a: b"y" * 9}, {a: b"y" * 6, t: b"z" * 13}):
        store_bench.commit(
            *(store_bench.propose_edit(path, content) for path, content in contents.items()), policy=policy
        )
    expect_error(store_bench, errors.QuotaExceeded, store_bench.propose_edit(a, b"y" * 7), policy=policy)
    expect_error(store_bench, errors.QuotaExceeded, propose_new("user/x.md", b""), policy=policy)


def test_changes_get_the_content_on_disk_and_empty_sets_pass(store_bench):
    check_paths(ChangeSet())
    assert drop_conflicting([ChangeSet()], {}) == ((ChangeSet(),), ())
    assert judge_changes(store_bench).change_set == ChangeSet()
    (only,) = draft(store_bench, store_bench.propose_edit("user/a.md", b"after")).changes
    assert only.path.text == "user/a.md"
    assert (only.before, only.after) == (INITIAL_FILES["user/a.md"], b"after")


# -- A run that may not know existing names gets other names, never a conflict, and cannot bypass a denial.


def commit_settled(ground, *paths, **more):
    done = ground.commit(
        *map(propose_new, paths), should_resolve_names=True, policy=make_lax_policy(), **more
    )
    assert [change.kind for change in done.changes] == ["create"] * len(paths)
    return [change.path for change in done.changes]


def test_folder_that_differs_only_by_case_is_reused(store_bench):
    requested = "user/TOPIC/n.md", "user/Topic/T.md", "user/New/a.md", "user/new/a.md"
    settled = ["user/topic/n.md", "user/topic/T-2.md", "user/New/a.md", "user/New/a-2.md"]
    assert commit_settled(store_bench, *requested) == settled


def test_obstacle_at_a_path_is_neither_followed_nor_replaced(store_bench):
    secret = store_bench.outside / "secret.md"
    kinds = {"f": Path.touch, "l": lambda path: path.symlink_to(store_bench.outside), "p": os.mkfifo}
    for name, make in kinds.items():
        make(store_bench.user / name)
        upper = f"user/{name.upper()}"
        assert commit_settled(store_bench, f"{upper}/n.md", f"user/{name}/n.md") == [
            f"{upper}-2/n.md",
            f"{upper}-2/n-2.md",
        ]
        assert commit_settled(store_bench, f"user/{name}/n.md") == [f"{upper}-2/n-3.md"]
    (store_bench.user / "n.md").symlink_to(secret)
    os.link(secret, store_bench.user / "h.md")
    assert commit_settled(store_bench, "user/n.md", "user/h.md") == ["user/n-2.md", "user/h-2.md"]
    assert {path: path.read_bytes() for path in store_bench.outside.iterdir()} == {secret: b"secret\n"}


def test_another_name_bypasses_no_denial_and_replaces_nothing(store_bench):
    for path in ("user/MEMORY.md", "user/index/x.md", "user/pinned/x.md", "user/AGENTS.md"):
        (store_bench.base / path).parent.mkdir(exist_ok=True)
        (store_bench.base / path).write_bytes(b"")
        before = store_bench.take_snapshot()
        with pytest.raises(Refused):
            store_bench.commit(propose_new(path), should_resolve_names=True)
    (layer,) = make_lax_policy().layers
    (rule,) = layer.allow
    creating = replace(layer, allow=(replace(rule, verbs=("create",)),))
    policy = replace(make_lax_policy(), layers=(creating,))
    with pytest.raises(Refused):
        store_bench.commit(store_bench.propose_edit("user/a.md"), should_resolve_names=True, policy=policy)
    assert store_bench.take_snapshot() == before
    claims = [make_claim("user/a.md", None), make_claim("user/topic/t.md", b"guessed")]  # They are ignored.
    assert commit_settled(store_bench, "user/a.md", claims=claims) == ["user/a-2.md"]


def test_too_long_name_is_cut_between_characters(store_bench, monkeypatch):
    for char in "xé語😀":
        stem = (char * MAX_SEGMENT_BYTES).encode()[: MAX_SEGMENT_BYTES - 3].decode(errors="ignore")
        assert commit_settled(store_bench, f"user/{stem}.md") == [f"user/{stem}.md"]
        monkeypatch.setattr(naming, "MAX_SUFFIX", 11)
        for number in range(2, 12 if char == "語" else 4):
            (path,) = commit_settled(store_bench, f"user/{stem}.md")
            name = path.removeprefix("user/")
            assert name.endswith(f"{char}-{number}.md")
            assert len(name.encode()) <= MAX_SEGMENT_BYTES
            assert stem.startswith(name.removesuffix(f"-{number}.md"))
    monkeypatch.setattr(naming, "MAX_SUFFIX", 3)
    before = store_bench.take_snapshot()
    with pytest.raises(QuotaExceeded):
        commit_settled(store_bench, f"user/{stem}.md")
    assert store_bench.take_snapshot() == before
