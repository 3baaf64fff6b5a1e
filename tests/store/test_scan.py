"""Scans: nothing is dropped silently, nothing outside is read, and a patched scan is a scan."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.confine.root import Examined, Listed, Root, choose_resolver
from muniment.errors import NotAFile, NotFound, PathEscape, TooLarge, Unreadable
from muniment.names import MAX_DEPTH, RelPath, Scope, Trust, Via
from muniment.store.index import IndexRow
from muniment.store.scan import HEAD_BYTES, Odd, index_rows, scan

SCOPE = Scope("user")


@dataclass
class Simulated:
    """A root in memory.

    `files` maps a path to its bytes, to the error that reading it raises, or to None for a special file; a
    path that ends in a slash is an empty directory.
    """

    files: dict
    broken_directories: dict
    examined: dict
    scope = SCOPE

    def list_directory(self, rel):
        if rel in self.broken_directories:
            raise self.broken_directories[rel]
        prefix = f"{rel}/" if rel else ""
        found = {}
        for path, content in self.files.items():
            if path.startswith(prefix):
                name, slash, _ = path[len(prefix) :].partition("/")
                found[name] = "directory" if slash else "other" if content is None else "file"
        return tuple(Listed(name, found[name]) for name in sorted(found) if name)

    def read_head(self, rel, limit):
        content = self.files[rel]
        if isinstance(content, Exception):
            raise content
        return content[:limit], len(content)

    def examine(self, rel):
        answer = self.examined.get(rel, 7)
        if isinstance(answer, Exception):
            raise answer
        return answer and Examined("file", answer)


def scanned(files, broken_directories=None, examined=None, **options):
    return scan(Simulated(files, broken_directories or {}, examined or {}), **options)


def rels(result):
    return [entry.rel for entry in result.entries]


def test_entries_are_found_with_title_type_and_size():
    result = scanned(
        {
            "b.md": b"---\nname: B\ndescription: D\ntype: project\n---\nbody",
            "a/x.md": b"# X\ntext",
            "a/note.txt": b"no entry",
            "c.md": b"---\nname: &b\n",
        }
    )
    assert [(e.rel, e.size, e.name, e.description, e.type, e.readable, e.note) for e in result.entries] == [
        ("a/x.md", 8, "X", "text", None, True, ""),
        ("b.md", 49, "B", "D", "project", True, ""),
        ("c.md", 13, "c", "---", None, True, "the front matter is not closed within 8192 bytes"),
    ]
    assert (len(result.entries), sum(e.size for e in result.entries), result.odd) == (3, 70, ())
    assert result.names == {"": ("a", "b.md", "c.md"), "a": ("note.txt", "x.md")}
    assert result.complete
    assert result.scope == SCOPE


def test_the_index_and_dot_names_are_no_entries_but_stand_in_the_way():
    files = [
        "MEMORY.md",
        "index/a.md",
        ".git/x.md",
        ".hidden.md",
        "sub/MEMORY.md",
        "sub/index/b.md",
        "sub/.x/c.md",
    ]
    result = scanned(dict.fromkeys(files, b""))
    assert rels(result) == ["sub/MEMORY.md", "sub/index/b.md"]
    assert result.names[""] == (".git", ".hidden.md", "MEMORY.md", "index", "sub")
    assert set(result.names) == {"", "sub", "sub/index"}
    assert result.odd == ()
    assert result.complete


def test_what_is_no_entry_is_reported_with_a_reason():
    deep = "/".join("d" * (MAX_DEPTH - 1))
    result = scanned(
        {
            "link.md": None,
            "fifo": None,
            "hard.md": PathEscape(Via.HARDLINK, "hard.md"),
            "new\nline.md": b"",
            "a\u202eb/x.md": b"",
            "Z\udcfcrich.md": b"",
            "NUL.md": b"",
            f"{deep}/x.md": b"",
            "/".join(["l" * 250] * 4) + "/longer-still-than-that.md": b"",
            "ok.md": b"",
        }
    )
    assert rels(result) == ["ok.md"]
    reasons = {odd.path[:20]: odd.reason for odd in result.odd}
    assert reasons["link.md"] == reasons["fifo"] == "a link or special file"
    assert reasons["hard.md"] == "leads outside the memory (hardlink)"
    assert set(reasons) >= {"new\\u{a}line.md", "a\\u{202e}b", "Z\\u{dcfc}rich.md", "NUL.md"}
    assert reasons[f"{deep}/x.md"[:20]] == "deeper than 9 levels"
    assert reasons["l" * 20] == "a path longer than 1024 bytes"
    assert all(odd.path.isprintable() for odd in result.odd)
    assert len(result.odd) == 9
    assert result.complete


def test_an_unreadable_entry_stays_in_the_list():
    files = dict.fromkeys(["a/locked.md", "b.md", "c.md", "d.md"], Unreadable("EACCES"))
    examined = {"b.md": None, "c.md": Unreadable("EACCES"), "d.md": PathEscape(Via.SYMLINK, "d.md")}
    result = scanned(files, examined=examined)
    assert [(e.rel, e.size, e.name, e.description) for e in result.entries] == [
        ("a/locked.md", 7, "locked", ""),
        ("b.md", 0, "b", ""),
        ("c.md", 0, "c", ""),
        ("d.md", 0, "d", ""),
    ]
    assert not any(entry.readable for entry in result.entries)
    assert all(entry.note == "the file cannot be read" for entry in result.entries)
    assert result.complete


@pytest.mark.parametrize("problem", [NotFound("x"), NotAFile("x"), TooLarge("x"), Unreadable("x")])
@pytest.mark.parametrize("directory", ["", "a"])
def test_a_directory_that_cannot_be_listed_makes_the_scan_incomplete(problem, directory):
    result = scanned({"a/x.md": b"", "b.md": b""}, {directory: problem})
    assert not result.complete
    assert rels(result) == (["b.md"] if directory else [])
    assert result.odd == (Odd(directory or ".", "this directory could not be listed"),)


def test_a_mount_is_no_part_of_the_memory():
    result = scanned({"a/x.md": b"", "b.md": b""}, {"a": PathEscape(Via.MOUNT, "a")})
    assert result.complete
    assert rels(result) == ["b.md"]
    assert result.odd == (Odd("a", "leads outside the memory (mount)"),)


def test_a_file_that_is_removed_meanwhile_is_not_there():
    result = scanned({"a.md": NotFound("x"), "b.md": b""})
    assert rels(result) == ["b.md"]
    assert result.complete


def test_a_file_that_becomes_a_directory_makes_the_scan_incomplete():
    result = scanned({"a.md": NotAFile("x")})
    assert not result.complete
    assert result.odd == (Odd("a.md", "became a directory while it was looked at"),)


@pytest.mark.parametrize(("limit", "complete"), [(5, True), (4, False), (0, False)])
def test_a_scan_stops_after_so_many_names(limit, complete):
    result = scanned(dict.fromkeys(["a/1.md", "a/2.md", "b.md", "c.md"], b""), max_names=limit)
    assert result.complete is complete
    assert len(result.entries) == min(4, max(0, limit - 1)) or limit == 0


def test_only_the_head_of_a_file_is_read():
    limits = []

    class Watched(Simulated):
        def read_head(self, rel, limit):
            limits.append(limit)
            return super().read_head(rel, limit)

    body = b"---\nname: a\n---\n" + b"x" * 200_000
    (entry,) = scan(Watched({"a.md": body}, {}, {})).entries
    assert limits == [HEAD_BYTES]
    assert entry.size == len(body)
    assert entry.description.endswith("…")


@pytest.mark.parametrize("shift", range(4))
def test_a_character_that_the_end_of_the_head_cuts_is_no_damage(shift):
    (entry,) = scanned({"a.md": b"x" * shift + "\U0001f600".encode() * 10_000}).entries
    assert entry.note == ""
    (entry,) = scanned({"a.md": b"Z\xfcrich"}).entries
    assert entry.note == "the file is not UTF-8 text"


def test_rows_take_the_trust_of_the_scope():
    result = scanned({"a.md": b"# A\nx", "b.md": Unreadable("x"), "c.md": b"# C\ny"})
    rows = index_rows(result, Trust.WORKSPACE)
    assert rows == (
        IndexRow(RelPath("a.md"), "A", "x", Trust.WORKSPACE, readable=True),
        IndexRow(RelPath("b.md"), "b", "", Trust.WORKSPACE, readable=False),
        IndexRow(RelPath("c.md"), "C", "y", Trust.WORKSPACE, readable=True),
    )
    assert index_rows(result, Trust.OWNER)[0].trust is Trust.OWNER


PATHS = [
    "a.md",
    "b.md",
    "t/a.md",
    "t/u/b.md",
    "v/c.md",
    "MEMORY.md",
    "index/p.md",
    ".x/d.md",
    "t/.e.md",
    "f.txt",
]
contents = (
    st.binary(max_size=30)
    | st.text(max_size=30).map(str.encode)
    | st.just(b"---\nname: n\n---\n" + b"y" * 20_000)
)


@given(
    st.dictionaries(st.sampled_from(PATHS), contents),
    st.dictionaries(st.sampled_from(PATHS), st.none() | contents),
)
def test_a_patched_scan_is_what_a_scan_after_the_change_would_be(before, changes):
    after = {path: data for path, data in (before | changes).items() if data is not None}
    parents = {path.rpartition("/")[0] for path in [*before, *after]} - {""}
    directories = {f"{parent}/": b"" for parent in parents}  # they stay when they are empty
    assert scanned(before).patched(changes) == scanned(after | directories)


def test_removing_from_a_directory_that_was_never_listed_changes_nothing():
    result = scanned({"a.md": b""})
    assert result.patched({RelPath("gone/x.md"): None}) == result


@pytest.fixture
def real_root(tmp_path):
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield Root(SCOPE, fd, choose_resolver())
    os.close(fd)


def test_a_real_tree_is_scanned_by_handle(tmp_path, real_root):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "secret.md").write_text("# Secret")
    (tmp_path / "topic").mkdir()
    (tmp_path / "topic" / "a.md").write_text("# A\ntext")
    (tmp_path / "link.md").symlink_to(outside / "secret.md")
    (tmp_path / "linked").symlink_to(outside)
    os.link(outside / "secret.md", tmp_path / "hard.md")
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / os.fsdecode(b"bad\xff.md")).write_text("x")
    result = scan(real_root)
    assert [(entry.rel, entry.name, entry.description) for entry in result.entries] == [
        ("topic/a.md", "A", "text")
    ]
    assert {odd.path: odd.reason for odd in result.odd} == {
        "link.md": "a link or special file",
        "linked": "a link or special file",
        "pipe.md": "a link or special file",
        "hard.md": "leads outside the memory (hardlink)",
        "bad\\u{dcff}.md": "U+DCFF is half of a surrogate pair; leave it out",
    }
    assert result.complete


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_real_file_and_directory_without_permission_are_reported(tmp_path, real_root):
    (tmp_path / "locked.md").write_text("12345")
    (tmp_path / "locked.md").chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    result = scan(real_root)
    assert [(entry.rel, entry.size, entry.readable) for entry in result.entries] == [("locked.md", 5, False)]
    assert not result.complete
