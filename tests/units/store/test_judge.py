"""Hostile change-sets, by hand: each is refused with the right class, and nothing at all changes on disk."""

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


def refused(ground, error, *changes, **more):
    """The error of a commit that changed nothing; a dry run must end in it as well."""
    before = ground.photograph()
    with pytest.raises(error) as caught:
        ground.commit(*changes, **more)
    with pytest.raises(error):
        ground.commit(*changes, dry_run=True, **more)
    assert ground.photograph() == before, changes
    return caught.value


def landed(ground, *changes, **more):
    """What was done, of each kind how often."""
    return [change.kind for change in ground.commit(*changes, **more).changes]


def drafted(ground, *changes):
    """`changes` with what the broker finds there."""
    whole = change_set(changes)
    return with_before(whole, look([whole], ground.roots, patience()))


def judged(ground, *changes, policy=STRICT, gates=lambda _: None):
    """What the judge makes of `changes`, with facts of nothing."""
    facts = Mock(**{"alike.return_value": frozenset(), "usage.return_value": (0, 0)})
    known = lambda *_: False  # noqa: E731
    return judge(drafted(ground, *changes), policy, ground.roots, gates=gates, facts=facts, known=known)


ESCAPES = {
    **dict.fromkeys(["user/../outside/x.md", "../outside/x.md", "user/topic/../../outside/x.md"], Via.DOTDOT),
    **dict.fromkeys(["/etc/x.md", "/team/x.md", "C:\\x.md", "//host/share/x.md"], Via.ABSOLUTE),
    "user/..": Via.DOTDOT,
    "user/a.md\0.md": Via.NUL,
}


@pytest.mark.threat("T-PATH-01", control="grammar_escapes")
@pytest.mark.threat("T-PATH-01", control="judged_paths")
def test_a_path_or_a_claim_that_leads_outside_is_an_escape_also_where_claims_count_for_nothing(ground):
    for (path, via), clean in product(ESCAPES.items(), (False, True)):
        assert refused(ground, errors.PathEscape, new(path), settle_names=clean).via is via, path
        claimed = {"claims": [Claim(path, None)], "settle_names": clean}
        assert refused(ground, errors.PathEscape, new("user/n.md"), **claimed).via is via, path


@pytest.mark.threat("T-RUN-08", control="judged_paths")
def test_an_escape_wins_over_whatever_else_is_wrong_with_the_set(ground):
    (ground.user / "link.md").symlink_to(ground.outside / "secret.md")
    wrong = Proposed("user/a.md", None, b"x")
    for other in (new("user//x.md"), new("team/x.md"), new("/memories/user/x.md"), wrong):
        refused(ground, errors.PathEscape, other, new("user/../x.md"))
        refused(ground, errors.PathEscape, other, new("user/n.md"), claims=[Claim("/etc/passwd", None)])
    assert refused(ground, errors.PathEscape, wrong, new("user/link.md")).via is Via.SYMLINK


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
def test_a_name_that_is_not_canonical_or_not_granted_is_refused_and_never_repaired(ground):
    rows = {**dict.fromkeys(REFUSED, errors.Refused), **dict.fromkeys(BAD, errors.BadName)}
    for clean in (False, True):
        for path, error in rows.items():
            refused(ground, error, new(path), settle_names=clean)
        for name in ("x.txt", "x", "x.MD", ".md", "....md"):  # Whatever the policy grants.
            refused(ground, errors.BadName, new(f"user/{name}"), policy=lax(), settle_names=clean)


def test_a_scope_without_a_root_or_that_the_policy_does_not_declare_is_no_scope(ground):
    ground.roots.pop("project").close()
    ground.roots["team"] = bind("team", ground.project)
    refused(ground, errors.Refused, new("project/x.md"))
    assert refused(ground, errors.PathEscape, new("/project/x.md")).via is Via.ABSOLUTE
    assert refused(ground, errors.Refused, new("team/x.md")).rule == "scopes"


def test_a_new_file_is_called_like_an_entry_also_where_every_gate_says_yes(ground):
    for name in ("x.txt", "x", "topic/x.md.sh", "x.MD"):
        with pytest.raises(errors.BadName):
            judged(ground, new(f"user/{name}"), policy=lax())


@pytest.mark.threat("T-PATH-09", control="folding")
def test_a_set_that_names_a_path_twice_beneath_another_or_as_an_alias_is_refused(ground):
    x, beneath = "user/x.md", "user/x.md/y.md"
    for paths, clean in product([(x, x), (x, "project/x.md", x), (x, beneath), (beneath, x)], (False, True)):
        error = refused(ground, errors.Refused, *map(new, paths), settle_names=clean)
        assert (error.rule, error.layer) == ("change-set", "judge")
    for pair in ((x, "user/X.md"), ("user/Straße.md", "user/STRASSE.md"), ("user/new/x.md", "user/New/y.md")):
        assert refused(ground, errors.Refused, *map(new, pair)).rule == "change-set", pair
    for path in ("user/A.md", "user/TOPIC/x.md", "user/topic/T.md"):  # Of what exists.
        assert refused(ground, errors.StoreConflict, new(path)).paths == (path,)
    paths = ["user/t.md", "user/topic/A.md", "project/A.md", "user/fresh/a.md"]  # In other directories: none.
    assert [change.path for change in ground.commit(*map(new, paths)).changes] == paths
    (ground.user / "A.md").write_bytes(b"other")
    assert landed(ground, ground.edit("user/a.md")) == ["modify"]


REMOVAL = claim("user/a.md", STANDING["user/a.md"])


def without(verb, *, on):
    """A policy that grants everything, with one verb denied on some paths."""
    (layer,) = lax().layers
    denied = Rule(id="kept", verbs=(verb,), paths=(on,))
    return replace(lax(), layers=(replace(layer, deny=(denied,)),))


def test_a_removal_that_the_policy_denies_is_refused_whoever_asks_but_the_owner_who_erases(ground):
    for verb in (Verb.MODIFY, Verb.DELETE):
        terms = {"policy": without(verb, on="/user/a.md")}
        refused(ground, errors.Refused, removals=[REMOVAL], **terms)
        assert landed(ground, removals=[ground.gone("user/topic/t.md")], **terms) == ["delete"]
        (ground.user / "topic" / "t.md").write_bytes(STANDING["user/topic/t.md"])
    where = EraseGround(ground.state, ground.roots, without(Verb.MODIFY, on="/user/**"), patience())
    erase("user/a.md", where)
    assert not (ground.user / "a.md").exists()
    assert (ground.user / "topic" / "t.md").exists()


def test_removing_what_is_not_as_it_was_is_a_conflict(ground):
    for change in (lambda path: path.write_bytes(b"other"), os.unlink):
        change(ground.user / "a.md")
        assert refused(ground, errors.StoreConflict, removals=[REMOVAL]).paths == ("user/a.md",)


def test_a_removal_counts_among_the_files_that_a_run_may_write_and_code_is_not_counted(ground):
    more = [new(f"user/{number}.md") for number in range(8)]
    with pytest.raises(errors.BudgetSpent):
        check_budgets(change_set(more, (), [REMOVAL]), STRICT)
    assert len(landed(ground, *more, removals=[REMOVAL])) == 9


def test_a_name_is_not_taken_by_what_is_removed_beside_it_until_that_is_gone_but_there_is_room(ground):
    refused(ground, errors.StoreConflict, new("user/A.md"), removals=[REMOVAL])
    policy = lax(max_files=2)
    refused(ground, errors.QuotaExceeded, new("user/n.md"), policy=policy)
    assert landed(ground, new("user/n.md"), removals=[REMOVAL], policy=policy) == ["create", "delete"]
    assert landed(ground, new("user/A.md")) == ["create"]


def test_what_is_created_though_it_exists_or_changed_though_it_is_absent_or_another_is_a_conflict(ground):
    absent = Proposed("user/x.md", sha(b"x"), b"y")
    refused(ground, errors.StoreConflict, absent)
    refused(ground, errors.StoreConflict, absent, settle_names=True)
    refused(ground, errors.StoreConflict, Proposed("user/none/x.md", sha(b"x"), b"y"))
    for base in (sha(b"wrong"), "", "A" * 64, sha(STANDING["user/a.md"]).upper()):
        refused(ground, errors.StoreConflict, Proposed("user/a.md", base, b"y"))
    changes = [new("user/a.md"), new("user/n.md"), new("user/topic/t.md")]
    assert refused(ground, errors.StoreConflict, *changes).paths == ("user/a.md", "user/topic/t.md")
    (ground.user / "a.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))  # It cannot be read.
    refused(ground, errors.StoreConflict, Proposed("user/a.md", sha(b"x"), b"y"))


@pytest.mark.threat("T-RUN-09", control="judged_claims")
def test_claims_that_lie_are_conflicts_and_all_are_named(ground):
    claims = [
        *(claim("user/a.md", b"lie"), ground.gone("user/topic/t.md"), claim("project/p.md", None)),
        *(claim("user/none.md", b"x"), claim("user", b"x"), claim("user/topic", None)),
    ]
    error = refused(ground, errors.StoreConflict, new("user/n.md"), claims=claims)
    assert error.paths == ("project/p.md", "user", "user/a.md", "user/none.md", "user/topic")
    for path in ("user/topic", "user"):  # What cannot be read is as nobody says.
        refused(ground, errors.StoreConflict, new("user/n.md"), claims=[Claim(path, "unreadable")])
    for path, kind in (("team/a.md", errors.Refused), ("user//a.md", errors.BadName)):
        refused(ground, kind, new("user/n.md"), claims=[Claim(path, None)])


def test_a_flood_of_claims_ends_with_the_deadline_and_one_path_is_read_once(ground, monkeypatch):
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
def test_what_is_no_file_or_directory_of_its_own_is_an_escape_also_to_claims(ground):
    path = ground.user / "x.md"
    for kind, make in KINDS.items():
        make(path, ground.outside)
        if kind != "file":
            for base in (None, sha(b"secret\n")):
                error = refused(ground, errors.PathEscape, Proposed("user/x.md", base, b"mine"))
                assert error.via is VIAS.get(kind, Via.SYMLINK), kind
        refused(ground, errors.NotAFile if kind == "file" else errors.PathEscape, new("user/x.md/y.md"))
        path.unlink()
    path.mkdir()
    refused(ground, errors.StoreConflict, new("user/x.md"))
    (ground.user / "out").symlink_to(ground.outside)
    refused(ground, errors.PathEscape, new("user/n.md"), claims=[claim("user/out/secret.md", b"secret\n")])


def test_a_parent_that_cannot_be_asked_is_a_conflict(ground, monkeypatch):
    monkeypatch.setattr(Root, "examine", Mock(side_effect=errors.Unreadable("no")))
    with pytest.raises(errors.StoreConflict):
        judged(ground, new("user/topic/x.md"))


GATES = {"control": "\x07", "ansi": "\x1b[31m", "bidi": "\u202e", "tag-chars": "\U000e0041"}

GATES["zero-width"] = "\u200b"


@pytest.mark.threat("T-MEM-09", control="content_gates")
def test_content_passes_the_gates_of_the_policy_after_it_was_stamped_and_is_utf_8_text(ground):
    for content in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"a\0b", b"\xf0\x9f\x98"):
        refused(ground, errors.ToolError, new("user/x.md", content))
        refused(ground, errors.ToolError, ground.edit("user/a.md", content))
    for gate, char in GATES.items():
        content = f"# fine\nnot {char} fine\n".encode()
        assert refused(ground, errors.ContentRejected, new("user/x.md", content)).rule == gate
        refused(ground, errors.ContentRejected, new("user/ok.md"), ground.edit("user/a.md", content))
    escaped = b'---\nname: "fine \\u202e not"\ndescription: D\n---\nbody\n'
    assert refused(ground, errors.ContentRejected, new("user/x.md", escaped)).rule == "bidi"
    refused(ground, errors.ContentRejected, new("user/x.md"), stamp=lambda _data, *_rest: b"\x1b[0m")
    refused(ground, errors.ContentRejected, new("user/x.md", b"\x1b[0m"))
    # Text that was there before passes none.
    (ground.user / "b.md").write_bytes(b"\x1b[0m")
    ground.commit(removals=[claim("user/b.md", b"\x1b[0m")])
    refused(ground, errors.ContentRejected, new("user/x.md", b"\x1b[0m"))
    assert landed(ground, new("user/b.md", b"\x1b[0m")) == ["create"]


def test_text_that_no_gate_lets_pass_may_be_made_smaller_where_it_is_ours_or_might_be_shown(ground):
    open_policy = replace(STRICT, content=replace(STRICT.content, reject=()))
    cut, whole = b"# N\nnot \x1b[0m fine\n", b"# N\nnot \x1b[0m fine\nmore\n"
    (ground.user / "theirs.md").write_bytes(whole)
    refused(ground, errors.ContentRejected, ground.edit("user/theirs.md", cut))
    ground.commit(new("user/ours.md", whole), policy=open_policy)
    refused(ground, errors.ContentRejected, ground.edit("user/ours.md", b"# N\nother \x1b[0m\n"))
    assert landed(ground, ground.edit("user/ours.md", cut)) == ["modify"]
    (ground.user / "odd.md").write_bytes("\x1b[0m\nzero\u200bwidth\n".encode())
    refused(ground, errors.ContentRejected, ground.edit("user/odd.md", "zero\u200bwidth\n".encode()))


def test_one_byte_above_the_largest_file_is_too_large(ground):
    policy = lax(write_bytes=1 << 30)
    refused(ground, errors.TooLarge, new("user/x.md", b"x" * (MAX_FILE_BYTES + 1)), policy=policy)
    ground.commit(new("user/x.md", b"x" * MAX_FILE_BYTES), policy=policy)
    assert (ground.user / "x.md").stat().st_size == MAX_FILE_BYTES


@pytest.mark.threat("T-RUN-01", control="judged_budgets")
def test_one_file_or_byte_more_than_a_run_may_write_is_refused_before_anything_is_written(
    ground, monkeypatch
):
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


def test_neither_a_file_nor_a_scope_may_pass_a_quota_of_bytes_or_files(ground):
    def over(policy, *changes):
        return refused(ground, errors.QuotaExceeded, *changes, policy=policy)

    policy = lax(max_file_bytes=12)
    assert "12 bytes" in str(over(policy, new("user/x.md", b"x" * 13)))
    over(policy, ground.edit("user/a.md", b"x" * 13))
    policy = lax(max_total_bytes=30)  # `user` holds 20, `project` 12.
    over(policy, new("user/x.md", b"x" * 11))
    over(policy, ground.edit("user/a.md", b"x" * 21))
    ground.commit(new("user/x.md", b"x" * 10), new("project/x.md", b"x" * 10), policy=policy)
    policy = lax(max_file_bytes=12, max_files=4)
    over(policy, new("user/y.md"), new("user/z.md"))
    ground.commit(new("user/y.md", b"x" * 12), new("project/y.md"), policy=policy)
    over(policy, new("user/z.md"))
    ground.commit(ground.edit("user/x.md"), policy=policy)
    # A quota counts only what its patterns match.
    narrow = replace(lax(max_files=1).quotas[0], paths=("/user/topic/**",), id="topics")
    policy = replace(lax(), quotas=(narrow, lax().quotas[0]))
    ground.commit(new("user/z.md"), policy=policy)
    over(policy, new("user/topic/x.md"))


def test_a_scope_that_is_over_its_quota_may_shrink_and_stay_but_not_grow(ground):
    policy = lax(max_total_bytes=5, max_files=1)
    a, t = "user/a.md", "user/topic/t.md"
    for contents in ({a: b"x" * 9}, {a: b"y" * 9}, {a: b"y" * 6, t: b"z" * 13}):
        ground.commit(*(ground.edit(path, content) for path, content in contents.items()), policy=policy)
    refused(ground, errors.QuotaExceeded, ground.edit(a, b"y" * 7), policy=policy)
    refused(ground, errors.QuotaExceeded, new("user/x.md", b""), policy=policy)


def test_a_change_is_read_by_the_broker_itself_and_an_empty_set_is_harmless(ground):
    check_paths(ChangeSet())
    assert settle([ChangeSet()], {}) == ((ChangeSet(),), ())
    assert judged(ground).change_set == ChangeSet()
    (only,) = drafted(ground, ground.edit("user/a.md", b"after")).changes
    assert only.path.text == "user/a.md"
    assert (only.before, only.after) == (STANDING["user/a.md"], b"after")


# -- A run that may not know what is there gets other names, never a conflict, and no name to hide behind.


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
    creating = replace(layer, allow=(replace(rule, verbs=("create",)),))
    policy = replace(lax(), layers=(creating,))
    with pytest.raises(Refused):
        ground.commit(ground.edit("user/a.md"), settle_names=True, policy=policy)
    assert ground.photograph() == before
    claims = [claim("user/a.md", None), claim("user/topic/t.md", b"guessed")]  # They count for nothing.
    assert settled(ground, "user/a.md", claims=claims) == ["user/a-2.md"]


def test_a_name_too_long_is_cut_between_characters_and_numbering_ends(ground, monkeypatch):
    for char in "xé語😀":
        stem = (char * MAX_SEGMENT_BYTES).encode()[: MAX_SEGMENT_BYTES - 3].decode(errors="ignore")
        assert settled(ground, f"user/{stem}.md") == [f"user/{stem}.md"]
        monkeypatch.setattr(naming, "MAX_SUFFIX", 11)
        for number in range(2, 12 if char == "語" else 4):
            (path,) = settled(ground, f"user/{stem}.md")
            name = path.removeprefix("user/")
            assert name.endswith(f"{char}-{number}.md")
            assert len(name.encode()) <= MAX_SEGMENT_BYTES
            assert stem.startswith(name.removesuffix(f"-{number}.md"))
    monkeypatch.setattr(naming, "MAX_SUFFIX", 3)
    before = ground.photograph()
    with pytest.raises(QuotaExceeded):
        settled(ground, f"user/{stem}.md")
    assert ground.photograph() == before
