"""Run the anthropic SDK's own tests of its memory tool, which are not part of this repository.

    pip download --no-deps --no-binary :all: anthropic==2.14.0, unpacked
    MUNIMENT_ANTHROPIC_TESTS=DIRECTORY pytest tests/surface/library/test_memory_tool_theirs.py

DIRECTORY is the unpacked package or a directory with its `test_filesystem.py`. These tests use names that
end in `.txt`, which our tool rejects. `_RenamingTool` replaces `.txt` with `.md` in arguments and back in
results. `DIFFERS` lists the other tests that do not apply to our tool.
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
INSIDE = "tests internals of the SDK's tool; tests/attacks covers races"
SIZE = "5 MB of lines: the quota of a file comes first"
BY_HAND = "writes crlf.txt directly, an invalid entry name; the synchronous test covers CR LF"
DIFFERS = {
    "test_mkdir_parents_not_world_writable_under_permissive_umask": INSIDE,
    "test_read_rejects_symlink_created_after_validation": INSIDE,
    "test_read_rejects_file_replaced_with_symlink_before_open": INSIDE,
    "test_view_rejects_directory_symlink_created_after_validation": INSIDE,
    "test_validate_path_returns_resolved_path_not_symlink_target": INSIDE,
    "test_view_error_for_files_with_too_many_lines": SIZE,
    "test_view_lists_symlinks_only_when_they_stay_inside_memories": "Muniment does not list links",
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


def load_sdk_tests():
    """Return the SDK's test module, or None if the variable is not set."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return None
    path = next(
        Path(directory).rglob("memory_tools/test_filesystem.py"), Path(directory, "test_filesystem.py")
    )
    spec = importlib.util.spec_from_file_location("their_filesystem", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.get_directory_snapshot = take_snapshot
    return module


def read_body(path):
    return parse(path.read_bytes()).body


def take_snapshot(base_path):
    """Return the files as the SDK's tests expect them: without front matter and without generated files."""
    files = (each for each in Path(base_path).rglob("*.md") if "index" not in each.parts)
    return {
        str(each.relative_to(base_path).with_suffix(".txt")): read_body(each)
        for each in files
        if each.name != "MEMORY.md"
    }


class _Body:
    """An entry file that is written as bytes and read as a body."""

    def __init__(self, path):
        self.write_bytes, self.read_bytes = path.write_bytes, lambda: read_body(path).encode()


class _Root(type(Path())):
    """The root, in which `name.txt` is stored as `name.md`."""

    def __truediv__(self, name):
        return _Body(Path(self, name).with_suffix(".md")) if str(name).endswith(".txt") else Path(self, name)


class _RenamingTool:
    """Our tool with the interface of the SDK's tool."""

    def __init__(self, tool, base):
        is_async = isinstance(tool, anthropics.AsyncMunimentMemoryTool)
        self._tool, self.base_path = tool, base
        self.memory_root = (anyio.Path if is_async else _Root)(base, "memories")

    def __getattr__(self, command):
        method = getattr(self._tool, command)

        def call(arguments):
            try:
                return method(rename_arguments(arguments)).replace(".md", ".txt")
            except anthropics.ToolError as error:
                raise anthropics.ToolError(error.content.replace(".md", ".txt")) from None

        async def call_async(arguments):
            try:
                return (await method(rename_arguments(arguments))).replace(".md", ".txt")
            except anthropics.ToolError as error:
                raise anthropics.ToolError(error.content.replace(".md", ".txt")) from None

        def rename_arguments(arguments):
            renamed = {
                key: each.replace(".txt", ".md") if key.endswith("path") else each for key, each in arguments
            }
            return type(arguments).construct(**renamed)

        return call_async if inspect.iscoroutinefunction(method) else call


@pytest.fixture
def open_tool(tmp_path):
    """Return a function that opens our tool over the directory of a test."""
    with ExitStack() as stack:

        def open_over(kind, base):
            root = Path(base, "memories")
            root.mkdir(mode=0o700)
            policy = write(tmp_path / "theirs.toml", body=POLICY)
            memory = muniment.open(tmp_path, home=tmp_path / "home", policy=policy, roots={"user": root})
            return _RenamingTool(kind(stack.enter_context(memory), scope="user"), base)

        yield open_over


@pytest.fixture
def temp_directory():
    with tempfile.TemporaryDirectory() as directory:
        yield directory


@pytest.fixture
def sync_local_filesystem_tool(open_tool, temp_directory):
    return open_tool(anthropics.MunimentMemoryTool, temp_directory)


@pytest.fixture
def async_local_filesystem_tool(open_tool, temp_directory):
    return open_tool(anthropics.AsyncMunimentMemoryTool, temp_directory)


def adapt_tests(sdk_class, differs):
    """Return the SDK's test class: skip the tests that differ, and run coroutines."""
    tests = {name: each for name, each in vars(sdk_class).items() if name.startswith("test_")}

    def wrap_test(name, test):
        run = test
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            def run(*arguments, **named):
                return asyncio.run(test(*arguments, **named))

        return pytest.mark.skip(differs[name])(run) if name in differs else run

    return type(sdk_class.__name__, (), {name: wrap_test(name, test) for name, test in tests.items()})


SDK_TESTS = load_sdk_tests()
if SDK_TESTS is None:

    def test_sdk_tests_pass_with_muniment_tool():
        pytest.skip(f"{VARIABLE} names no directory with the tests of the anthropic SDK")

else:
    SYNC = SDK_TESTS.TestBetaLocalFilesystemMemoryTool
    ASYNC = SDK_TESTS.TestBetaAsyncLocalFilesystemMemoryTool
    TestSdk = adapt_tests(SYNC, DIFFERS)
    TestSdkAsync = adapt_tests(ASYNC, DIFFERS | DIFFERS_ASYNC)

    def test_listed_differences_name_existing_sdk_tests():
        assert set(DIFFERS) <= {*vars(SYNC), *vars(ASYNC)}
        assert set(DIFFERS_ASYNC) <= set(vars(ASYNC))
