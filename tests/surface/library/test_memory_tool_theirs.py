"""The anthropic SDK's own tests of its memory tool, run against ours. They are theirs, and not kept here.

    pip download --no-deps --no-binary :all: anthropic==2.14.0, unpacked
    MUNIMENT_ANTHROPIC_TESTS=DIRECTORY pytest tests/surface/library/test_memory_tool_theirs.py

DIRECTORY is the unpacked one, or any that holds their `test_filesystem.py`. Their names end in `.txt`, which
our tool refuses: between them and it stands `_Named`, which says `.md` instead, both ways. What it refuses
besides, or does not know, stands in `DIFFERS`.
"""

import asyncio
import functools
import importlib.util
import inspect
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

import muniment
from kit import anthropics
from kit.policy.files import allow, write
from muniment.content.entry import parse

VARIABLE = "MUNIMENT_ANTHROPIC_TESTS"
INSIDE = "is about the inside of their tool; tests/attacks races ours"
SIZE = "5 MB of lines: the quota of a file comes first"
BY_HAND = "puts crlf.txt by hand, which no entry is called; the synchronous twin shows that CR LF is kept"
DIFFERS = {
    "test_mkdir_parents_not_world_writable_under_permissive_umask": INSIDE,
    "test_read_rejects_symlink_created_after_validation": INSIDE,
    "test_read_rejects_file_replaced_with_symlink_before_open": INSIDE,
    "test_view_rejects_directory_symlink_created_after_validation": INSIDE,
    "test_validate_path_returns_resolved_path_not_symlink_target": INSIDE,
    "test_view_error_for_files_with_too_many_lines": SIZE,
    "test_view_lists_symlinks_only_when_they_stay_inside_memories": "lists links; ours refuses or leaves out",
}
DIFFERS_ASYNC = {
    "test_view_preserves_crlf_line_endings": BY_HAND,
    "test_str_replace_preserves_crlf_line_endings": BY_HAND,
    "test_insert_preserves_crlf_line_endings": BY_HAND,
}
POLICY = """
[scopes]
user = { trust = "agent", commit = "auto" }
[confinement]
require = "partial"
[changes]
max_forget = 5
[[quota]]
id = "all"
paths = ["/**"]
max_file_bytes = 131_072
max_files = 100
max_total_bytes = 1_048_576
""" + allow("/user/**/*.md", verbs=("list", "read", "create", "modify"))


def found():
    """Their module; None: nobody says where it is."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return None
    path = next(
        Path(directory).rglob("memory_tools/test_filesystem.py"), Path(directory, "test_filesystem.py")
    )
    spec = importlib.util.spec_from_file_location("their_filesystem", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.get_directory_snapshot = snapshot
    return module


def body_of(path):
    return parse(path.read_bytes()).body


def snapshot(base_path):
    """The files below as their tests expect them: without front matter, and without what code generates."""
    files = (each for each in Path(base_path).rglob("*.md") if "index" not in each.parts)
    return {
        str(each.relative_to(base_path).with_suffix(".txt")): body_of(each)
        for each in files
        if each.name != "MEMORY.md"
    }


class _Body:
    """A file of ours that is written by hand and read as a body."""

    def __init__(self, path):
        self.write_bytes, self.read_bytes = path.write_bytes, lambda: body_of(path).encode()


class _Root(type(Path())):
    """The root, in which `name.txt` is our `name.md`."""

    def __truediv__(self, name):
        return _Body(Path(self, name).with_suffix(".md")) if str(name).endswith(".txt") else Path(self, name)


class _Named:
    """Our tool where theirs is expected."""

    def __init__(self, tool, base):
        is_later = isinstance(tool, anthropics.AsyncMunimentMemoryTool)
        self._tool, self.base_path = tool, base
        self.memory_root = (anyio.Path if is_later else _Root)(base, "memories")

    def __getattr__(self, command):
        act = getattr(self._tool, command)

        def answered(given):
            try:
                return act(asked_for(given)).replace(".md", ".txt")
            except anthropics.ToolError as error:
                raise anthropics.ToolError(error.content.replace(".md", ".txt")) from None

        async def answered_later(given):
            try:
                return (await act(asked_for(given))).replace(".md", ".txt")
            except anthropics.ToolError as error:
                raise anthropics.ToolError(error.content.replace(".md", ".txt")) from None

        def asked_for(given):
            renamed = {
                key: each.replace(".txt", ".md") if key.endswith("path") else each for key, each in given
            }
            return type(given).construct(**renamed)

        return answered_later if inspect.iscoroutinefunction(act) else answered


@pytest.fixture
def opened(tmp_path):
    """Opens a tool of ours over their directory."""
    with ExitStack() as stack:

        def over(kind, base):
            root = Path(base, "memories")
            root.mkdir(mode=0o700)
            policy = write(tmp_path / "theirs.toml", body=POLICY)
            memory = muniment.open(tmp_path, home=tmp_path / "home", policy=policy, roots={"user": root})
            return _Named(kind(stack.enter_context(memory), scope="user"), base)

        yield over


@pytest.fixture
def temp_directory():
    with tempfile.TemporaryDirectory() as directory:
        yield directory


@pytest.fixture
def sync_local_filesystem_tool(opened, temp_directory):
    return opened(anthropics.MunimentMemoryTool, temp_directory)


@pytest.fixture
def async_local_filesystem_tool(opened, temp_directory):
    return opened(anthropics.AsyncMunimentMemoryTool, temp_directory)


def applicable(theirs, differs):
    """Their class, in which what differs is skipped with its reason, and a coroutine is run."""
    tests = {name: each for name, each in vars(theirs).items() if name.startswith("test_")}

    def ours(name, test):
        run = test
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            def run(*arguments, **named):
                return asyncio.run(test(*arguments, **named))

        return pytest.mark.skip(differs[name])(run) if name in differs else run

    return type(theirs.__name__, (), {name: ours(name, test) for name, test in tests.items()})


THEIRS = found()
if THEIRS is None:

    def test_their_tests_pass_against_ours():
        pytest.skip(f"{VARIABLE} names no directory with the tests of the anthropic SDK")

else:
    SYNC = THEIRS.TestBetaLocalFilesystemMemoryTool
    ASYNC = THEIRS.TestBetaAsyncLocalFilesystemMemoryTool
    TestTheirs = applicable(SYNC, DIFFERS)
    TestTheirsAsync = applicable(ASYNC, DIFFERS | DIFFERS_ASYNC)

    def test_what_is_said_to_differ_are_tests_of_theirs():
        assert set(DIFFERS) <= {*vars(SYNC), *vars(ASYNC)}
        assert set(DIFFERS_ASYNC) <= set(vars(ASYNC))
