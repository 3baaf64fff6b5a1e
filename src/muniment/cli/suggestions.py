"""Suggest values of options and arguments for the completion of a shell.

Separate from `completion.py`, because the declarations of options import this module at every start.

- S1 Whatever the memory contains, a suggestion never raises an error, prints or writes: it is then missing.
- S2 Only entries that the policy lets the owner see are suggested, no withheld and no expired ones.
- S3 The catalog is read as it is. A change that no command has read yet is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from muniment.kernel.decide import Policy, PolicyEvaluator
    from muniment.kernel.names import Scope
    from muniment.settings import Settings
    from muniment.store.suggestions import RecordedEntry, RecordedMemory, RecordedRoot

Suggestions = list[tuple[str, str]]
"""Values, each with a line of help, which is not cleaned."""

_CHOICE: Final = re.compile(r"[a-z-]+(?:\|[a-z0-9-]+)+")
"""Matches a metavar that lists all possible values."""

MAX_SUGGESTIONS: Final = 50
"""Maximum number of suggested entries of a scope, and of tasks."""


def suggest_entries(context: typer.Context, incomplete: str) -> Suggestions:
    """Return the handles that begin with `incomplete`, or the paths if it contains a slash."""

    def find() -> Iterator[tuple[str, str]]:
        scope_name, slash, rel = incomplete.partition("/")
        with _open_memory(context.params) as memory:
            for scope, root in memory.roots.items():
                if not slash:
                    found = memory.select_visible(scope, root.find_by_handle(incomplete))
                    yield from ((each.handle, each.title) for each in islice(found, MAX_SUGGESTIONS))
                elif scope == scope_name:
                    found = memory.select_visible(scope, root.find_by_path(rel))
                    yield from (
                        (f"{scope}/{each.rel}", each.title) for each in islice(found, MAX_SUGGESTIONS)
                    )

    return _collect(find())


def suggest_scopes(context: typer.Context) -> Suggestions:
    """Return the scopes of the policy."""

    def find() -> Iterator[tuple[str, str]]:
        _, policy = _load_policy(context.params)
        yield from ((scope, "") for scope in policy.scopes)

    return _collect(find())


def suggest_folders(context: typer.Context, incomplete: str) -> Suggestions:
    """Return the scopes, and the folders that begin with `incomplete`."""

    def find() -> Iterator[tuple[str, str]]:
        scope_name, slash, rel = incomplete.partition("/")
        with _open_memory(context.params) as memory:
            for scope, root in memory.roots.items():
                if scope == scope_name or not slash:
                    found = memory.select_visible(scope, root.find_by_folder(rel))
                    folders = (each.rel.rpartition("/")[0] for each in islice(found, MAX_SUGGESTIONS))
                    yield from ((f"{scope}/{folder}", "") for folder in folders)

    return [*suggest_scopes(context), *_collect(find())]


def suggest_places(context: typer.Context, incomplete: str) -> Suggestions:
    """Return the scopes, folders and entries that begin with `incomplete`."""
    return [*suggest_folders(context, incomplete), *suggest_entries(context, incomplete)]


def suggest_changes(context: typer.Context) -> Suggestions:
    """Return the handles of the newest tasks that an undo can reverse."""
    return _collect(_find_tasks(context.params, is_undo=False))


def suggest_undos(context: typer.Context) -> Suggestions:
    """Return the handles of the newest undos that a redo can reverse."""
    return _collect(_find_tasks(context.params, is_undo=True))


def add_choices(annotations: Iterable[Any]) -> None:
    """Let each option and argument suggest the values that its metavar lists, such as `rules|fail`.

    Args:
        annotations: the annotated types.
    """
    for info in chain.from_iterable(getattr(each, "__metadata__", ()) for each in annotations):
        if info.autocompletion is None and _CHOICE.fullmatch(info.metavar or ""):
            info.autocompletion = info.metavar.split("|").copy


class _Memory(NamedTuple):
    """The memory that the options of an incomplete command line select.

    Attributes:
        evaluator: evaluates the policy.
        recorded: the databases.
        roots: the rows of the roots that the catalog knows.
    """

    evaluator: PolicyEvaluator
    recorded: RecordedMemory
    roots: Mapping[Scope, RecordedRoot]

    def select_visible(self, scope: Scope, found: Iterable[RecordedEntry]) -> Iterator[RecordedEntry]:
        """Yield the entries that a listing for the owner may contain now (rule S2)."""
        from muniment.kernel.names import RelPath, Verb
        from muniment.kernel.path import CanonicalPath

        for each in found:
            path = CanonicalPath(scope, RelPath(each.rel))
            is_visible = all(self.evaluator.allows(verb, path) for verb in (Verb.LIST, Verb.READ))
            if is_visible and (each.expires is None or not _has_expired(each.expires)):
                yield each


def _find_tasks(parameters: Mapping[str, Any], *, is_undo: bool) -> Iterator[tuple[str, str]]:
    """Yield the handle of each task with its kind, and with the title of its first entry if visible.

    Args:
        parameters: as for `_open_memory`.
        is_undo: as for `RecordedMemory.find_tasks`.
    """
    from muniment.store.handles import build_task_handle

    with _open_memory(parameters) as memory:
        scopes = {root.key: scope for scope, root in memory.roots.items()}
        for each in memory.recorded.find_tasks(MAX_SUGGESTIONS, is_undo=is_undo):
            if (scope := scopes.get(each.root)) is not None:
                found = memory.select_visible(scope, memory.roots[scope].find_at(each.rel))
                titles = [f": {entry.title}" for entry in found]
                yield build_task_handle(each.task), "".join([each.kind, *titles])


def _has_expired(expires: str) -> bool:
    from muniment.content.expiry import format_utc, is_expired

    return is_expired(expires, format_utc(datetime.now(UTC)))


def _collect(found: Iterable[tuple[str, str]]) -> Suggestions:
    """Return all suggestions, without those after an error (rule S1)."""
    suggestions: Suggestions = []
    with suppress(Exception):  # An error message would be printed into the command line of the user.
        suggestions.extend(found)
    return suggestions


def _load_policy(parameters: Mapping[str, Any]) -> tuple[Settings, Policy]:
    """Return the settings and the policy for the options of a command line."""
    from muniment.settings import load_configured_policy, parse_roots, read_settings

    roots = parse_roots(parameters.get("root") or ())
    settings = read_settings(os.environ, policy=parameters.get("policy"), roots=roots)
    return settings, load_configured_policy(settings).policy


@contextmanager
def _open_memory(parameters: Mapping[str, Any]) -> Iterator[_Memory]:
    """Open the memory that the options of a command line select, for the block, and only for reading.

    Args:
        parameters: the options that were parsed so far.
    """
    from pathlib import Path

    from muniment.kernel.decide import PolicyEvaluator
    from muniment.settings import find_default_roots
    from muniment.store.basis import compute_basis
    from muniment.store.suggestions import open_recorded_memory
    from muniment.workspaces.projects import find_project

    settings, policy = _load_policy(parameters)
    project = find_project(settings.home, Path(parameters.get("workspace") or ""))
    project_path = project.build_memory_path(settings.home)
    paths = find_default_roots(settings, policy.scopes, project_path, create=False)
    with open_recorded_memory(settings.state) as recorded:
        roots = {
            scope: root
            for scope, path in paths.items()
            if (root := recorded.find_root(path.resolve(), compute_basis(policy, scope))) is not None
        }
        yield _Memory(PolicyEvaluator(policy), recorded, roots)
