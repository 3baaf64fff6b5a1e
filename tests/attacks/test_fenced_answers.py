"""A fenced worker answers every call as the same code does without a fence, and is denied no needed system
call.
"""

import itertools
import os

import pytest

from kit.memories import CANARY, WORKER_CONFINEMENT, make_roots, make_strict_policy, take_snapshot, write_file
from kit.sandbox.probe import make_zygote
from kit.sandbox.side_by_side import open_pair
from muniment.errors import WorkerLost
from muniment.kernel.decide import Content
from muniment.kernel.names import Enforcement
from muniment.sandbox.fence.pool import Zygote
from muniment.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.skipif(WORKER_CONFINEMENT is not Enforcement.FULL, reason="this kernel has no fence")

SERVICES = {
    "unchanged": None,
    "guarded": "guarded_service:serve",
    "without openat2": "withholding_service:openat2_unknown",
}

PATHS = [
    *("", "user", "user/", "/user/known.md", "/memories/user/known.md", "user/known.md", "user/KNOWN.md"),
    *("user/topic", "user/topic/", "user/topic/deep.md", "user/topic/deep.md/below.md", "user/absent.md"),
    *("user/absent/absent.md", "user/new/new.md", "user/binary.md", "user/large.md", "user/hidden-text.md"),
    *("user/link.md", "user/linked/secret.md", "user/loop.md", "user/inner.md", "user/hard.md"),
    *("user/pipe.md", "user/.hidden.md", "user/pinned/kept.md", "user/MEMORY.md"),
    *("user/a/b/c/d/e/f/g/h/i/j.md", "user/ol\u00e9.md", "user/ole\u0301.md", "user/\ud800.md"),
    *("user/a\0.md", "user/../user/known.md", "user//known.md", "user/./known.md", "/etc/passwd"),
    *("/proc/self/environ", "team/known.md", "~/known.md", "C:\\known.md", "user/" + "n" * 300 + ".md"),
    *("u" * 1025, "project/of-project.md"),
]
TEXTS = [
    *("", "there", "---\nname: x\n---\nbody\n", "---\n- no: map\n---\n", "---\n" + "a: [" * 200 + "\n---\n"),
    *("a\u202eb\n", "a\u200db\n", "\U000e0041\n", "\x1b[2J\n", "\x00", "\ud800"),
    *("\U0001f469\u200d\U0001f4bb\n", "x" * 131_073, "line\n" * 3000),
]
PATTERNS = [
    *("", ".", "there", "(", "(?P<x", "\\", r"\pL+", r"(?i)THERE", "\ud800", "a" * 1001, "(x{1000}){1000}"),
    *("x{2000}", "a|b", r"\x00", r"(?s).*", r"\C", "é", r"^\s*$"),
]
CODES = {None, "path_escape", "bad_name", "refused", "not_found", "not_a_file", "not_text", "too_large"}
CODES |= {"exists_as", "no_match", "not_unique", "bad_arguments", "unknown_tool", "quota"}
"""The codes that occur under every policy."""

ODD = [None, True, 1, -1, 1.5, 10**30, [], {}, "x", ["user"], {"path": "user"}]


def generate_calls():
    """Generate calls of each tool with valid and invalid arguments."""
    for path in PATHS:
        yield "ls", {"path": path}
        yield "read_file", {"path": path}
        yield "read_file", {"path": path, "offset": 1, "limit": 1}
        yield "grep", {"pattern": "e", "path": path}
        yield "edit", {"path": path, "old_string": "there", "new_string": "here"}
        yield "edit", {"path": path, "old_string": "here", "new_string": "there", "replace_all": True}
        yield "write_file", {"path": path, "content": "what is there\n"}
    for text in TEXTS:
        yield "write_file", {"path": "user/text.md", "content": text}
        yield "edit", {"path": "user/known.md", "old_string": text, "new_string": "there"}
        yield "edit", {"path": "user/known.md", "old_string": "there", "new_string": text}
        yield "edit", {"path": "user/known.md", "old_string": "e", "new_string": text, "replace_all": True}
    for pattern, ignore_case, most in itertools.product(PATTERNS, (False, True), (1, 500)):
        yield "grep", {"pattern": pattern, "ignore_case": ignore_case, "max_matches": most}
    for number in range(12):
        yield "write_file", {"path": f"user/many-{number}.md", "content": "x" * 60_000}
    tools = ("ls", "read_file", "grep", "edit", "write_file")
    for tool, odd in itertools.product((*tools, "bash", "", None, 7), ODD):
        yield tool, odd
        yield tool, {"path": odd}
        yield tool, {"path": "user/known.md", "limit": odd, "pattern": odd, "content": odd}
        yield tool, {"pattern": "x", "max_matches": odd}
        yield tool, {"path": "user/known.md", "old_string": odd, "new_string": odd}
    for offset, limit in itertools.product((-1, 0, 3, 10**20), (-1, 0, 1, 2000, 2001)):
        yield "read_file", {"path": "user/known.md", "offset": offset, "limit": limit}
    for _ in range(40):
        yield "read_file", {"path": "user/large.md"}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    base = tmp_path_factory.mktemp("memory")
    roots, outside = make_roots(base), base / "outside"
    user = roots["user"]
    there = (".hidden.md", "pinned/kept.md", "MEMORY.md", "ol\u00e9.md", "a/b/c/d/e/f/g/h/i/j.md")
    for rel, content in {
        **dict.fromkeys((*there, "\udcff.md"), "# there\n"),
        "known.md": "what was there\nand there\n",
        "topic/deep.md": "---\nname: deep\ndescription: d\n---\nthere\r\n",
        "binary.md": b"\xff\xfe\x00there",
        "large.md": "there are many lines\n" * 4000,
        "hidden-text.md": "a\u202eb\u200dthere",
    }.items():
        write_file(user, rel, content)
    write_file(roots["project"], "of-project.md", "there\n")
    links = {"link.md": outside / "secret.md", "linked": outside, "loop.md": "loop.md"}
    for name, target in {**links, "inner.md": "known.md"}.items():
        (user / name).symlink_to(target)
    (user / "hard.md").hardlink_to(outside / "secret.md")
    os.mkfifo(user / "pipe.md")
    return roots


@pytest.fixture(scope="module", params=SERVICES.values(), ids=SERVICES)
def zygote(request):
    with Zygote() if request.param is None else make_zygote(request.param) as zygote:
        zygote.start()
        yield zygote


GENEROUS = {"files_written": 1000, "write_bytes": 1 << 26, "read_bytes": 1 << 26}
POLICIES = {
    "strict": make_strict_policy(limits={"tool_calls": 100_000}),
    "generous": make_strict_policy(limits=GENEROUS, content=Content(reject=())),
    "poor": make_strict_policy(
        limits={"scan_bytes": 2000, "read_bytes": 5000, "files_written": 1, "write_bytes": 50}
    ),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("symlinks", ["beneath", "refuse"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_fenced_worker_answers_as_an_unfenced_one(zygote, roots, policy, symlinks):
    before = take_snapshot(*roots.values())
    calls, codes = 0, set()
    with open_pair(zygote, policy, roots, symlinks=symlinks) as both:
        for tool, arguments in generate_calls():
            outcome = both.call(tool, arguments)
            assert CANARY not in outcome.text
            codes.add(outcome.code)
            calls += 1
        both.changes()
    assert calls > 900
    assert codes >= CODES | ({"budget", "content_rejected"} if policy.content.reject else set())
    assert take_snapshot(*roots.values()) == before


def test_guard_reports_imports_and_denied_system_calls(roots, monkeypatch):
    for service, expected in (("importing", "exit code 99"), ("asking", "SIGSYS")):
        with make_zygote(f"guarded_service:{service}") as zygote:
            monkeypatch.setattr("muniment.sandbox.fence.pool.get_shared_zygote", lambda: zygote)
            with Sandbox(make_strict_policy(), roots) as box, pytest.raises(WorkerLost, match=expected):
                box.call("ls", {"path": "user"})


def test_fenced_worker_of_root_cannot_read_closed_files(tmp_path):
    roots = make_roots(tmp_path)
    write_file(roots["user"], "closed.md", CANARY).chmod(0)
    write_file(roots["user"], "shut/inner.md", CANARY)
    (roots["user"] / "shut").chmod(0)
    with Sandbox(make_strict_policy(on_escape="refuse"), roots) as box:
        for tool, more in (("read_file", {}), ("write_file", {"content": "x\n"})):
            for path in ("user/closed.md", "user/shut/inner.md"):
                assert box.call(tool, {"path": path, **more}).code == "unreadable"
        assert CANARY not in box.call("grep", {"pattern": "canary"}).text
        assert box.call("ls", {"path": "user"}).verdict == "allow"
    (roots["user"] / "shut").chmod(0o700)
