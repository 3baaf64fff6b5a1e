"""Hostile change-sets, by hand: each is refused with the right class, and nothing at all changes on disk."""

from __future__ import annotations

import os

import pytest

from kit.store.ground import STRICT, claim, laid_out, lax, new, patience, sha
from muniment.confine.cancel import Patience
from muniment.confine.root import Root
from muniment.errors import (
    BadName,
    BudgetSpent,
    ContentRejected,
    DeadlineExceeded,
    NotAFile,
    NotText,
    PathEscape,
    QuotaExceeded,
    Refused,
    StoreConflict,
    TooLarge,
    Unreadable,
)
from muniment.names import MAX_FILE_BYTES, Verb, Via
from muniment.policy.decide import Rule
from muniment.store.judge import Author, check_paths, draft, judge, look, settle
from muniment.store.upkeep import view_of
from muniment.tools.overlay import ChangeSet, Claim, Proposed


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


def refused(ground, *changes, error, **more):
    """The error of a commit that changed nothing; a dry run and a clean one must end in one as well."""
    before = ground.photograph()
    with pytest.raises(error) as caught:
        ground.commit(*changes, **more)
    with pytest.raises(error):
        ground.commit(*changes, dry_run=True, **more)
    assert ground.photograph() == before
    return caught.value


def drafted(ground, *changes):
    """What the broker finds that `changes` would do."""
    change_set = ChangeSet(changes)
    return draft(change_set, look([change_set], ground.roots, patience()), ground.roots)


# Names.

ESCAPES = {
    "user/../outside/x.md": Via.DOTDOT,
    "../outside/x.md": Via.DOTDOT,
    "user/topic/../../outside/x.md": Via.DOTDOT,
    "user/..": Via.DOTDOT,
    "/etc/x.md": Via.ABSOLUTE,
    "/team/x.md": Via.ABSOLUTE,
    "C:\\x.md": Via.ABSOLUTE,
    "//host/share/x.md": Via.ABSOLUTE,
    "user/a.md\0.md": Via.NUL,
}


@pytest.mark.threat("T-PATH-01", control="grammar_escapes")
@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("clean", [False, True])
def test_a_path_that_leads_outside_is_an_escape(ground, path, clean):
    assert refused(ground, new(path), error=PathEscape, settle_names=clean).via is ESCAPES[path]


@pytest.mark.sweep(6)
@pytest.mark.threat("T-PATH-01", control="judged_paths")
@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("clean", [False, True])
def test_a_claim_that_leads_outside_is_an_escape_also_where_claims_count_for_nothing(ground, path, clean):
    claims = [Claim(path, None)]
    error = refused(ground, new("user/n.md"), claims=claims, error=PathEscape, settle_names=clean)
    assert error.via is ESCAPES[path]


@pytest.mark.threat("T-RUN-08", control="judged_paths")
@pytest.mark.parametrize(
    "other",
    [new("user//x.md"), new("team/x.md"), new("/memories/user/x.md"), Proposed("user/a.md", None, b"x")],
)
def test_an_escape_wins_over_whatever_else_is_wrong_with_the_set(ground, other):
    (ground.user / "link.md").symlink_to(ground.outside / "secret.md")
    refused(ground, other, new("user/../x.md"), error=PathEscape)
    refused(ground, other, new("user/n.md"), claims=[Claim("/etc/passwd", None)], error=PathEscape)
    if other.unsafe_path == "user/a.md":
        assert refused(ground, other, new("user/link.md"), error=PathEscape).via is Via.SYMLINK


NAMES = {
    "team/a.md": Refused,
    "users/a.md": Refused,
    "/memories/user/x.md": Refused,
    "/user/x.md": Refused,
    "user": Refused,
    "user/x.txt": Refused,
    "user/x": Refused,
    "user/x.MD": Refused,
    "user/.x.md": Refused,
    "user/.git/x.md": Refused,
    "user/MEMORY.md": Refused,
    "user/memory.md": Refused,
    "user/index/x.md": Refused,
    "user/pinned/x.md": Refused,
    "user/Pinned/x.md": Refused,
    "user/AGENTS.md": Refused,
    "user/a/b/c.md": Refused,
    "": BadName,
    "/memories/": BadName,
    "user/": BadName,
    "user//x.md": BadName,
    "user/./x.md": BadName,
    "user/x.md/": BadName,
    "user/x\u202e.md": BadName,
    "user/\uff4d.md": BadName,
    "user/con.md": BadName,
    "user/x%2e.md": BadName,
    "user/" + "x" * 300 + ".md": BadName,
    "user/" + "x/" * 20 + "x.md": BadName,
    "x" * 3000: BadName,
}


@pytest.mark.sweep(6)
@pytest.mark.threat("T-MEM-12", control="denies")
@pytest.mark.threat("T-RUN-09", control="judged_changes")
@pytest.mark.parametrize("path", NAMES)
@pytest.mark.parametrize("clean", [False, True])
def test_a_name_that_is_not_canonical_or_not_granted_is_refused_and_never_repaired(ground, path, clean):
    refused(ground, new(path), error=NAMES[path], settle_names=clean)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("name", ["x.txt", "x", "x.MD", ".md", "....md"])
def test_a_new_file_is_named_md_whatever_the_policy_grants(ground, name, clean):
    refused(ground, new(f"user/{name}"), error=BadName, policy=lax(), settle_names=clean)


def test_a_declared_scope_without_a_root_is_no_scope(ground):
    del ground.roots["project"]
    refused(ground, new("project/x.md"), error=Refused)
    assert refused(ground, new("/project/x.md"), error=PathEscape).via is Via.ABSOLUTE


def test_a_bound_scope_that_the_policy_does_not_declare_is_refused(ground):
    ground.roots["team"] = ground.roots["project"]
    assert refused(ground, new("team/x.md"), error=Refused).rule == "scopes"


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(
    "paths",
    [
        ["user/x.md", "user/x.md"],
        ["user/x.md", "project/x.md", "user/x.md"],
        ["user/x.md", "user/x.md/y.md"],
        ["user/x.md/y.md", "user/x.md"],
    ],
)
def test_a_set_that_names_a_path_twice_or_beneath_another_is_refused(ground, paths, clean):
    error = refused(ground, *map(new, paths), error=Refused, settle_names=clean)
    assert (error.rule, error.layer) == ("change-set", "judge")


@pytest.mark.threat("T-PATH-09", control="folding")
@pytest.mark.parametrize(
    "paths",
    [
        ["user/x.md", "user/X.md"],
        ["user/Straße.md", "user/STRASSE.md"],
        ["user/new/x.md", "user/New/y.md"],
    ],
)
def test_two_new_names_that_are_equal_after_folding_are_refused(ground, paths):
    assert refused(ground, *map(new, paths), error=Refused).rule == "change-set"


@pytest.mark.threat("T-PATH-09", control="folding")
@pytest.mark.parametrize("path", ["user/A.md", "user/TOPIC/x.md", "user/topic/T.md"])
def test_a_new_name_that_aliases_an_existing_one_is_a_conflict(ground, path):
    assert refused(ground, new(path), error=StoreConflict).paths == (path,)


def test_names_in_other_directories_are_no_aliases(ground):
    done = ground.commit(
        new("user/t.md"), new("user/topic/A.md"), new("project/A.md"), new("user/fresh/a.md")
    )
    assert [change.path for change in done.changes] == [
        "user/t.md",
        "user/topic/A.md",
        "project/A.md",
        "user/fresh/a.md",
    ]


def test_a_file_beside_its_alias_may_still_be_changed(ground):
    (ground.user / "A.md").write_bytes(b"other")
    assert ground.commit(ground.edit("user/a.md")).changes[0].kind == "modify"


# Removals.

REMOVAL = claim("user/a.md", b"# A\nalpha\n")


def without(verb, *, on):
    """A policy that grants everything, with one verb denied on some paths."""
    (layer,) = lax().layers
    denied = Rule(id="kept", verbs=(verb,), paths=(on,))
    return lax().model_copy(update={"layers": (layer.model_copy(update={"deny": (denied,)}),)})


@pytest.mark.parametrize("author", [Author.MODEL, Author.CODE, Author.RESTORE])
@pytest.mark.parametrize("verb", [Verb.MODIFY, Verb.DELETE])
def test_a_removal_that_the_policy_denies_is_refused_whoever_asks(ground, author, verb):
    policy = without(verb, on="/user/a.md")
    refused(ground, removals=[REMOVAL], error=Refused, policy=policy, author=author)
    removal = claim("user/topic/t.md", b"# T\ntopic\n")
    assert ground.commit(removals=[removal], policy=policy, author=author).changes[0].kind == "delete"


def test_only_the_owner_erases_what_the_policy_denies_to_remove(ground):
    policy = without(Verb.MODIFY, on="/user/**")
    assert ground.commit(removals=[REMOVAL], policy=policy, author=Author.ERASE).changes[0].kind == "delete"
    assert not (ground.user / "a.md").exists()
    edit = ground.edit("user/topic/t.md")
    refused(ground, edit, error=Refused, policy=policy, author=Author.ERASE)


@pytest.mark.parametrize("content", [b"other", None])
def test_removing_what_is_not_as_it_was_is_a_conflict(ground, content):
    (ground.user / "a.md").unlink() if content is None else (ground.user / "a.md").write_bytes(content)
    assert refused(ground, removals=[REMOVAL], error=StoreConflict).paths == ("user/a.md",)


def test_a_removal_counts_among_the_files_that_a_run_may_write_and_code_is_not_counted(ground):
    more = [new(f"user/{number}.md") for number in range(8)]
    refused(ground, *more, removals=[REMOVAL], error=BudgetSpent)
    assert len(ground.commit(*more, removals=[REMOVAL], author=Author.CODE).changes) == 9


def test_a_name_is_not_taken_by_what_is_removed_beside_it_until_that_is_gone(ground):
    refused(ground, new("user/A.md"), removals=[REMOVAL], error=StoreConflict)
    ground.commit(removals=[REMOVAL])
    assert ground.commit(new("user/A.md")).changes[0].kind == "create"


def test_a_removal_makes_room_in_a_quota(ground):
    policy = lax(max_files=2)
    refused(ground, new("user/n.md"), error=QuotaExceeded, policy=policy)
    assert len(ground.commit(new("user/n.md"), removals=[REMOVAL], policy=policy).changes) == 2


@pytest.mark.parametrize("author", [Author.MODEL, Author.CODE])
def test_text_that_was_there_before_passes_no_gate_and_new_text_does(ground, author):
    refused(ground, new("user/x.md", b"\x1b[0m"), error=ContentRejected, author=author)
    assert ground.commit(new("user/x.md", b"\x1b[0m"), author=Author.RESTORE).changes[0].kind == "create"


# What the set says is there.


def test_creating_what_exists_is_a_conflict(ground):
    assert refused(ground, new("user/a.md"), error=StoreConflict).paths == ("user/a.md",)


def test_changing_what_is_absent_is_a_conflict(ground):
    refused(ground, Proposed("user/x.md", sha(b"x"), b"y"), error=StoreConflict)
    refused(ground, Proposed("user/none/x.md", sha(b"x"), b"y"), error=StoreConflict)
    refused(ground, Proposed("user/x.md", sha(b"x"), b"y"), error=StoreConflict, settle_names=True)


@pytest.mark.parametrize("base", [sha(b"wrong"), "", "A" * 64, sha(b"# A\nalpha\n").upper()])
def test_a_wrong_base_is_a_conflict(ground, base):
    refused(ground, Proposed("user/a.md", base, b"y"), error=StoreConflict)


def test_a_conflict_names_every_file_that_is_not_as_said(ground):
    changes = [new("user/a.md"), new("user/n.md"), new("user/topic/t.md")]
    assert refused(ground, *changes, error=StoreConflict).paths == ("user/a.md", "user/topic/t.md")


@pytest.mark.threat("T-RUN-09", control="judged_claims")
def test_claims_that_lie_are_conflicts_and_all_are_named(ground):
    claims = [
        claim("user/a.md", b"lie"),
        claim("user/topic/t.md", b"# T\ntopic\n"),
        claim("project/p.md", None),
        claim("user/none.md", b"x"),
        claim("user", b"x"),
        claim("user/topic", None),
    ]
    error = refused(ground, new("user/n.md"), claims=claims, error=StoreConflict)
    assert error.paths == ("project/p.md", "user", "user/a.md", "user/none.md", "user/topic")


@pytest.mark.parametrize(("path", "error"), [("team/a.md", Refused), ("user//a.md", BadName)])
def test_a_claim_on_no_path_of_this_memory_is_refused(ground, path, error):
    refused(ground, new("user/n.md"), claims=[Claim(path, None)], error=error)


@pytest.mark.threat("T-PATH-03", control="resolvers")
def test_a_claim_through_a_link_is_an_escape(ground):
    (ground.user / "out").symlink_to(ground.outside)
    refused(ground, new("user/n.md"), claims=[claim("user/out/secret.md", b"secret\n")], error=PathEscape)


def test_a_flood_of_claims_ends_with_the_deadline(ground):
    read = []

    class Counting(Patience):
        def check(self):
            read.append(1)
            if len(read) > 3:
                raise DeadlineExceeded("the deadline passed")

    flood = ChangeSet((), tuple(claim(f"user/{number}.md", None) for number in range(1000)))
    with pytest.raises(DeadlineExceeded):
        look([flood], ground.roots, Counting(0.0))
    assert len(read) == 4


def test_a_path_that_is_claimed_again_and_again_is_read_once(ground, monkeypatch):
    read, real = [], Root.read_bytes

    def counted(self, rel, *more):
        read.append(rel)
        return real(self, rel, *more)

    monkeypatch.setattr(Root, "read_bytes", counted)
    flood = ChangeSet((), (claim("user/a.md", b"# A\nalpha\n"),) * 1000)
    standing = look([flood], ground.roots, patience())
    assert settle([flood], standing, ground.roots) == ((0,), ())
    assert read == ["a.md"]


# What stands in the way.


def plant(ground, name, kind):
    path = ground.user / name
    match kind:
        case "symlink":
            path.symlink_to(ground.outside / "secret.md")
        case "dangling":
            path.symlink_to(ground.outside / "nothing.md")
        case "directory link":
            path.symlink_to(ground.outside)
        case "hard link":
            os.link(ground.outside / "secret.md", path)
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "file":
            path.write_bytes(b"file\n")


LEAVES = {
    "symlink": Via.SYMLINK,
    "dangling": Via.SYMLINK,
    "directory link": Via.SYMLINK,
    "hard link": Via.HARDLINK,
    "fifo": Via.SPECIAL,
}


@pytest.mark.threat("T-PATH-03", control="resolvers")
@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize("base", [None, sha(b"secret\n")])
def test_a_leaf_that_is_no_file_of_its_own_is_an_escape(ground, kind, base):
    plant(ground, "x.md", kind)
    error = refused(ground, Proposed("user/x.md", base, b"mine"), error=PathEscape)
    assert error.via is LEAVES[kind]


def test_a_leaf_that_is_a_directory_is_a_conflict(ground):
    plant(ground, "x.md", "directory")
    refused(ground, new("user/x.md"), error=StoreConflict)


PARENTS = {
    "symlink": PathEscape,
    "dangling": PathEscape,
    "directory link": PathEscape,
    "hard link": PathEscape,
    "fifo": PathEscape,
    "file": NotAFile,
}


@pytest.mark.parametrize("kind", PARENTS)
def test_a_parent_that_is_no_directory_is_refused_before_anything_is_written(ground, kind):
    plant(ground, "x.md", kind)
    refused(ground, new("user/x.md/y.md"), error=PARENTS[kind])


def test_a_parent_that_cannot_be_asked_is_a_conflict(ground, monkeypatch):
    def refuse(_root, _rel):
        raise Unreadable("no")

    monkeypatch.setattr("muniment.confine.root.Root.examine", refuse)
    with pytest.raises(StoreConflict):
        drafted(ground, new("user/topic/x.md"))


def test_a_file_too_large_to_read_is_a_conflict(ground):
    (ground.user / "a.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    refused(ground, Proposed("user/a.md", sha(b"x"), b"y"), error=StoreConflict)


# Content.


@pytest.mark.parametrize("content", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"a\0b", b"\xf0\x9f\x98"])
def test_what_is_not_utf_8_text_is_refused(ground, content):
    refused(ground, new("user/x.md", content), error=NotText)
    refused(ground, ground.edit("user/a.md", content), error=NotText)


GATES = {
    "control": "\x07",
    "ansi": "\x1b[31m",
    "bidi": "\u202e",
    "tag-chars": "\U000e0041",
    "zero-width": "\u200b",
}


@pytest.mark.threat("T-MEM-09", control="content_gates")
@pytest.mark.parametrize("gate", GATES)
def test_content_passes_the_gates_of_the_policy(ground, gate):
    content = f"# fine\nnot {GATES[gate]} fine\n".encode()
    assert refused(ground, new("user/x.md", content), error=ContentRejected).rule == gate
    refused(ground, new("user/ok.md"), ground.edit("user/a.md", content), error=ContentRejected)


def test_what_front_matter_spells_with_escapes_passes_the_gates_too(ground):
    content = b'---\nname: "fine \\u202e not"\ndescription: D\n---\nbody\n'
    assert refused(ground, new("user/x.md", content), error=ContentRejected).rule == "bidi"


def test_content_is_judged_after_it_was_stamped(ground):
    refused(ground, new("user/x.md"), error=ContentRejected, stamp=lambda _data, *_rest: b"\x1b[0m")


def test_one_byte_above_the_largest_file_is_too_large(ground):
    policy = lax(write_bytes=1 << 30)
    refused(ground, new("user/x.md", b"x" * (MAX_FILE_BYTES + 1)), error=TooLarge, policy=policy)
    ground.commit(new("user/x.md", b"x" * MAX_FILE_BYTES), policy=policy)
    assert (ground.user / "x.md").stat().st_size == MAX_FILE_BYTES


# Budgets and quotas.


@pytest.mark.threat("T-RUN-01", control="judged_budgets")
def test_one_file_more_than_a_run_may_write_is_refused_and_as_many_are_not(ground):
    nine = [new(f"user/{number}.md") for number in range(9)]
    refused(ground, *nine, error=BudgetSpent)
    assert len(ground.commit(*nine[:8]).changes) == 8


def test_one_byte_more_than_a_run_may_write_is_refused_whatever_the_stamp_adds(ground):
    policy = lax(write_bytes=10)
    refused(ground, new("user/x.md", b"12345"), new("user/y.md", b"123456"), error=BudgetSpent, policy=policy)
    ground.commit(
        new("user/x.md", b"12345"),
        new("user/y.md", b"12345"),
        policy=policy,
        stamp=lambda data, *_rest: data + b" and more",
    )


def test_a_budget_is_checked_before_anything_is_read(ground, monkeypatch):
    monkeypatch.setattr("muniment.confine.root.Root.read_bytes", None)
    with pytest.raises(BudgetSpent):
        ground.commit(*[new(f"user/{number}.md") for number in range(9)])


def test_a_file_may_not_pass_its_quota(ground):
    policy = lax(max_file_bytes=12)
    assert "12 bytes" in str(refused(ground, new("user/x.md", b"x" * 13), error=QuotaExceeded, policy=policy))
    refused(ground, ground.edit("user/a.md", b"x" * 13), error=QuotaExceeded, policy=policy)
    ground.commit(new("user/x.md", b"x" * 12), policy=policy)


def test_a_scope_may_not_hold_more_files_than_its_quota(ground):
    policy = lax(max_files=3)
    refused(ground, new("user/x.md"), new("user/y.md"), error=QuotaExceeded, policy=policy)
    ground.commit(new("user/x.md"), new("project/y.md"), policy=policy)
    refused(ground, new("user/z.md"), error=QuotaExceeded, policy=policy)
    ground.commit(ground.edit("user/x.md"), policy=policy)


def test_a_scope_may_not_hold_more_bytes_than_its_quota(ground):
    policy = lax(max_total_bytes=30)  # `user` holds 20, `project` 12.
    refused(ground, new("user/x.md", b"x" * 11), error=QuotaExceeded, policy=policy)
    refused(ground, ground.edit("user/a.md", b"x" * 21), error=QuotaExceeded, policy=policy)
    ground.commit(new("user/x.md", b"x" * 10), new("project/x.md", b"x" * 10), policy=policy)


def test_a_scope_that_is_over_its_quota_may_shrink_and_stay_but_not_grow(ground):
    policy = lax(max_total_bytes=5, max_files=1)
    ground.commit(ground.edit("user/a.md", b"x" * 9), policy=policy)
    ground.commit(ground.edit("user/a.md", b"y" * 9), policy=policy)
    ground.commit(
        ground.edit("user/a.md", b"y" * 6), ground.edit("user/topic/t.md", b"z" * 13), policy=policy
    )
    refused(ground, ground.edit("user/a.md", b"y" * 7), error=QuotaExceeded, policy=policy)
    refused(ground, new("user/x.md", b""), error=QuotaExceeded, policy=policy)


def test_a_quota_counts_only_what_its_patterns_match(ground):
    narrow = lax(max_files=1).quotas[0].model_copy(update={"paths": ("/user/topic/**",), "id": "topics"})
    wide = lax().quotas[0]
    policy = lax().model_copy(update={"quotas": (narrow, wide)})
    ground.commit(new("user/x.md"), policy=policy)
    refused(ground, new("user/topic/x.md"), error=QuotaExceeded, policy=policy)


# The parts by themselves.


def test_an_empty_set_drafts_nothing_and_is_judged_harmless(ground):
    check_paths(ChangeSet(), ground.roots)
    assert drafted(ground) == ()
    assert settle([ChangeSet()], {}, ground.roots) == ((0,), ())
    judge((), STRICT, {}, Author.MODEL)


def test_a_draft_is_read_by_the_broker_itself(ground):
    (only,) = drafted(ground, ground.edit("user/a.md", b"after"))
    assert (only.path.text, only.root, only.before, only.after) == (
        "user/a.md",
        ground.roots["user"],
        b"# A\nalpha\n",
        b"after",
    )


def test_a_drafted_scope_without_a_view_is_never_passed_over(ground):
    drafts = drafted(ground, new("project/x.md"))
    views = {"user": view_of(ground.state, ground.roots["user"], STRICT)}
    with pytest.raises(ValueError, match="not looked at"):
        judge(drafts, STRICT, views, Author.MODEL)
