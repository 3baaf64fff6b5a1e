"""The largest requests that a run may make succeed under the fence and its limits, as they do without it."""

import json

import pytest

from kit.memories import IN_A_WORKER, make_roots, put, strict
from kit.sandbox.side_by_side import side_by_side
from muniment.kernel.decide import Content, Quota
from muniment.kernel.names import MAX_FILE_BYTES, Enforcement
from muniment.sandbox.tools.calls import MAX_PATTERN_CHARS
from muniment.sandbox.tools.service import MAX_CALL_BYTES
from muniment.sandbox.tools.workbench import MAX_LISTED

pytestmark = pytest.mark.skipif(IN_A_WORKER is not Enforcement.FULL, reason="this kernel has no fence")

MIB, FILES = 1 << 20, 8
LARGEST = Quota(id="all", paths=("/**",), max_file_bytes=MIB, max_total_bytes=64 * MIB)
WIDE = {"read_bytes": 64 * MIB, "write_bytes": FILES * MIB, "tool_calls": 1000}
WIDE_POLICY = strict(content=Content(reject=()), quotas=(LARGEST,), limits=WIDE)
# The pattern of this size for which RE2 needs the most memory: it takes 80 ms per mebibyte.
LARGEST_PATTERN = r"\pL\pN" * (MAX_PATTERN_CHARS // 6)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return make_roots(tmp_path_factory.mktemp("memory"))


@pytest.fixture
def both(zygote, roots):
    with side_by_side(zygote, WIDE_POLICY, roots) as both:
        yield both


@pytest.mark.slow
def test_maximum_files_of_largest_size_are_written_and_edited(both):
    old, new = '"' * MAX_FILE_BYTES, "\\" * MAX_FILE_BYTES
    for number in range(FILES):
        path = f"user/large-{number}.md"
        assert both.call("write_file", {"path": path, "content": old}).verdict == "allow"
        for edit in ((old, new, {}), ("\\", "x", {"replace_all": True})):
            arguments = {"path": path, "old_string": edit[0], "new_string": edit[1], **edit[2]}
            assert both.call("edit", arguments).verdict == "allow"
    assert both.call("write_file", {"path": "user/one-more.md", "content": "x"}).code == "budget"
    largest = {"path": "user/large-0.md", "old_string": "\x01" * MAX_FILE_BYTES, "new_string": old}
    assert both.call("edit", largest).code == "no_match"
    assert [change.kind for change in both.changes()] == ["create"] * FILES


def test_largest_call_listing_and_file_are_accepted(both, roots):
    put(roots["user"], "small.md", "x\n")
    # Each character takes six bytes of JSON, and one of UTF-8.
    old, new = "\x01" * MAX_FILE_BYTES, "\x02" * MAX_FILE_BYTES
    arguments = {"path": "user/small.md", "old_string": old, "new_string": new}
    assert MAX_CALL_BYTES * 0.75 < len(json.dumps(arguments)) <= MAX_CALL_BYTES
    assert [both.call("edit", arguments).code for _ in range(2)] == ["no_match"] * 2
    for number in range(MAX_LISTED + 100):
        put(roots["project"], f"topic/{'n' * 100}{number:04}.md", "x\n")
    outcome = both.call("ls", {"path": "project/topic"})
    assert (outcome.text.count("\n"), f"{MAX_LISTED + 100} in all" in outcome.text) == (MAX_LISTED, True)
    found = both.call("grep", {"pattern": "x", "path": "project", "max_matches": 500})
    line = "one of many lines of a very large file, é, " * 8 + "\n"
    text = line * (MAX_FILE_BYTES // len(line.encode()))
    put(roots["user"], "long.md", text + "x" * (MAX_FILE_BYTES - len(text.encode())))
    lines, offset = text.count("\n") + 1, 0
    while offset < lines:
        outcome = both.call("read_file", {"path": "user/long.md", "offset": offset, "limit": 2000})
        assert (found.verdict, outcome.verdict) == ("allow", "allow")
        offset += len([row for row in outcome.text.split("\n") if not row.startswith("[")])
    assert "[truncated" not in outcome.text
    (roots["user"] / "long.md").unlink()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A user scope with as many files of the largest size as one run may search."""
    roots = make_roots(tmp_path_factory.mktemp("library"))
    text = b"".join(b"w%03d " % (number % 997) + b"abcdefghij klmnopqrst\n" for number in range(50_000))
    for number in range(63):
        put(roots["user"], f"{number:02}.md", (text + b"needle\n")[-MAX_FILE_BYTES:])
    return roots


PATTERNS = [
    *("needle", "z" * MAX_PATTERN_CHARS, "|".join(f"w{number:03}" for number in range(200)), r"\pL\pN" * 40),
    *(r"(?:[a-y]{1,20} ){1,12}z", r"((a{1,10}){1,10}){1,9}z", "a?" * 250 + "a" * 250, ".*" * 400),
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("pattern", PATTERNS, ids=range(len(PATTERNS)))
def test_grep_searches_maximum_number_of_files(zygote, library, pattern):
    with side_by_side(zygote, WIDE_POLICY, library) as both:
        arguments = {"pattern": pattern, "path": "user", "max_matches": 500}
        assert both.call("grep", arguments).verdict == "allow"


SLOW = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("path", ["user/00.md", pytest.param("user", marks=SLOW)])
@pytest.mark.parametrize("ignore_case", [True, False])
def test_grep_accepts_largest_pattern(zygote, library, path, ignore_case):
    with side_by_side(zygote, WIDE_POLICY, library) as both:
        arguments = {"pattern": LARGEST_PATTERN, "path": path, "ignore_case": ignore_case}
        assert both.call("grep", arguments).text == "no matches"
