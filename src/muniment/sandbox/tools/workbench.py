"""Execute the tool calls of one run on its pending writes (`Overlay`). Each call is judged before it acts.

A call is decided in this order, and the first step that fails determines the result:

1. The tool exists, and its model accepts the arguments (`calls.py`).
2. The path is canonical and inside the memory, and the policy grants the call on it as written and as
   resolved.
3. The file is opened through the handle of its root. Links that are not in the run's map, hard links, special
   files and mounts are escapes (`kernel/root.py`).
4. The policy grants the verb of the call.
5. A run replaces only files that it has read (`must_read`).
6. The content fits the quotas and budgets and passes the gates.

`ls` lists a link as its target file or directory. `grep` resolves links in its path but not below it: the
target of such a link is under the same root and is found there, by its name. If a path contained a link, the
result names its target.

The decisions here let the model correct its request. The broker judges the change set again, and that
decision counts. A denied file and a missing file outside a scope give the same message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import re2

from muniment.content.admission import check_entry, find_name_gate
from muniment.content.gates import decode, encode
from muniment.content.secrets import redact_secrets
from muniment.errors import (
    BadArguments,
    BadName,
    BudgetSpent,
    NotAFile,
    NotFound,
    PathEscape,
    QuotaExceeded,
    Refusal,
    Refused,
    TooLarge,
    ToolError,
)
from muniment.kernel.change import ChangeSet, digest
from muniment.kernel.decide import Allow, Deny, Policy, PolicyDecision, PolicyEvaluator
from muniment.kernel.names import MAX_FILE_BYTES, RelPath, Scope, Verb, join_path
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.kernel.root import Kind, Root
from muniment.policy.grammar import NO_LINKS, Links, check_creatable, resolve
from muniment.sandbox.tools.calls import (
    Arguments,
    Edit,
    Grep,
    Ls,
    Outcome,
    ReadFile,
    WriteFile,
    build_allowed_outcome,
    build_error_outcome,
    check_tool,
    parse,
)
from muniment.sandbox.tools.overlay import NOTHING_INJECTED, InjectedDigests, Overlay

# -- resolve -----------------------------------------------------------------------------------------
#
# Resolve the text of a path to a file or directory that the policy grants under both of its names.
#
# 1. The text is canonical: if not, it is an escape or `bad_name` (`policy/grammar.py`).
# 2. The policy grants the request on the path as written; no further step runs before that.
# 3. Links of the run's map are resolved: a target outside the root is an escape (`policy/grammar.py`).
# 4. The policy grants the same on the path as resolved. The refusal contains the rule but not that name, so
#    that a hidden name stays hidden.
#
# One file has one name, the resolved one: later steps (overlay, claims, quotas, change set, results of a
# search) use no other. Without a map both names are the same, and a link is an escape when it is opened.


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A path of a request, and the path that it leads to.

    Attributes:
        requested: the path as given in the request.
        path: the path after links are resolved; equal to `requested` if it contains no link.
        is_directory: True: only a directory can be there; False: not checked yet.
    """

    requested: CanonicalPath
    path: CanonicalPath
    is_directory: bool = False

    @property
    def names(self) -> tuple[CanonicalPath, ...]:
        """Return the paths that the policy must allow: as written and, if it differs, as resolved."""
        return (self.requested,) if self.path == self.requested else (self.requested, self.path)

    def resolve_child(self, path: CanonicalPath) -> ResolvedTarget | None:
        """Return the target for a path under this directory.

        Args:
            path: the path, as resolved. In the result, `requested` begins with this directory as written.

        Returns:
            None if the path as written would be too long or too deep.
        """
        if self.requested == self.path:
            return ResolvedTarget(path, path)
        inside = path.rel[len(join_path(self.path.rel, "")) :]
        try:
            written = CanonicalPath(self.requested.scope, join_path(self.requested.rel, inside))
        except BadName:
            return None
        return ResolvedTarget(written, path)


class PathResolver:
    """Resolves the paths of the requests of one run.

    Args:
        judge: decides by the policy of the run.
        scopes: scopes of the run.
        links: links by scope, for the scopes whose links are resolved.
    """

    def __init__(
        self, judge: PolicyEvaluator, scopes: Collection[Scope], links: Mapping[Scope, Links]
    ) -> None:
        self._judge, self._scopes, self._links = judge, scopes, links

    def resolve_file(self, unsafe_path: str, *verbs: Verb) -> ResolvedTarget:
        """Return the file at a path, if the policy grants one of `verbs` on it.

        Raises:
            PathEscape, BadName, Refused: the path is outside the memory, invalid or denied.
            NotAFile: the path is a scope, or can only be a directory.
        """
        written = canonicalise(unsafe_path, self._scopes)
        if not written.rel:
            text = written.text
            raise NotAFile(f"{text} is a scope; give a file in it, such as {text}/topic/name.md")
        target = self._resolve(written, partial(self._decide_any, verbs))
        if target.is_directory:
            raise NotAFile(f"{written.text} is a folder; give a file in it")
        return target

    def resolve_directory(self, unsafe_path: str) -> ResolvedTarget:
        """Return the scope or directory at a path, if the policy lets the run list it.

        Raises:
            PathEscape, BadName, Refused: the path is outside the memory, invalid or denied.
        """
        return self._resolve(self._canonicalise(unsafe_path), self._judge.decide_directory)

    def resolve_any(self, unsafe_path: str) -> ResolvedTarget:
        """Return the file or directory at a path, unless a deny rule covers it.

        The caller must check further whether the policy grants the request.

        Raises:
            PathEscape, BadName, Refused: the path is outside the memory, invalid or denied.
        """
        return self._resolve(self._canonicalise(unsafe_path), self._decide_unless_denied)

    def require(self, verb: Verb, reached: ResolvedTarget) -> None:
        """Raise `Refused` unless the policy grants `verb` on the file `reached`."""
        for name in reached.names:
            _require_allowed(name, reached.requested, partial(self._judge.decide, verb))

    def require_directory(self, reached: ResolvedTarget) -> None:
        """Raise `Refused` unless the policy lets the run list the directory `reached`."""
        for name in reached.names:
            _require_allowed(name, reached.requested, self._judge.decide_directory)

    def allows(self, reached: ResolvedTarget, verb: Verb) -> bool:
        """Return whether the policy grants `verb` on the file `reached`."""
        return all(self._judge.allows(verb, name) for name in reached.names)

    def is_directory_denied(self, reached: ResolvedTarget) -> bool:
        """Return whether the policy denies `ls` for the directory `reached` and for everything in it."""
        return any(map(self._judge.is_directory_denied, reached.names))

    def iterate_links(self, reached: ResolvedTarget) -> Iterator[ResolvedTarget]:
        """Yield the target of each link under the directory `reached`, at any depth.

        A link with a target outside the root is skipped.
        """
        links = self._links.get(reached.path.scope, {})
        prefix = join_path(reached.path.rel, "")
        for rel in links:
            if rel.startswith(prefix):
                try:
                    link = reached.resolve_child(CanonicalPath(reached.path.scope, rel))
                    resolved = resolve(link.path, links) if link else None
                except (PathEscape, Refusal):
                    continue
                if link and resolved:
                    yield ResolvedTarget(link.requested, resolved.path, resolved.is_directory)

    def _canonicalise(self, unsafe_path: str) -> CanonicalPath:
        return canonicalise(unsafe_path.removesuffix("/") or unsafe_path, self._scopes)

    def _resolve(
        self, written: CanonicalPath, decide: Callable[[CanonicalPath], PolicyDecision]
    ) -> ResolvedTarget:
        """Resolve the links of a path, if the policy allows the path as written and as resolved.

        Args:
            written: the path as written.
            decide: returns the decision of the policy on a path.
        """
        _require_allowed(written, written, decide)
        resolved = resolve(written, self._links.get(written.scope, {}))
        if resolved.path != written:
            _require_allowed(resolved.path, written, decide)
        return ResolvedTarget(written, resolved.path, resolved.is_directory)

    def _decide_any(self, verbs: Collection[Verb], path: CanonicalPath) -> PolicyDecision:
        """Return `Allow` if the policy grants one of `verbs`, else the denial of the last verb."""
        *others, last = verbs
        if any(self._judge.allows(verb, path) for verb in others):
            return Allow()
        return self._judge.decide(last, path)

    def _decide_unless_denied(self, path: CanonicalPath) -> PolicyDecision:
        return self._judge.decide_directory(path) if self._judge.is_directory_denied(path) else Allow()


def _require_allowed(
    name: CanonicalPath, written: CanonicalPath, decide: Callable[[CanonicalPath], PolicyDecision]
) -> None:
    verdict = decide(name)
    if isinstance(verdict, Deny):
        link_reason = f"{written.text} has a link, and the rule {verdict.rule!r} denies this for its target"
        reason = verdict.reason if name == written else f"{link_reason}; use another name"
        raise Refused(reason, rule=verdict.rule, layer=verdict.layer)


# -- search ------------------------------------------------------------------------------------------
#
# Line search with RE2: linear in the text for any pattern.
#
# The complete file is searched in one call with `(?m)` and `never_nl`, and line numbers are counted only
# for hits: per line the same search is two orders of magnitude slower (measured).

_MAX_PROGRAM_BYTES: Final = 8 << 20
"""Memory that RE2 may use for one pattern: its own default. Larger patterns do not compile."""

MAX_LINE_CHARS: Final = 200
"""Maximum characters of a matching line that are returned."""


class Pattern:
    """A compiled RE2 pattern, which matches line by line.

    Raises:
        BadArguments: the pattern is not RE2 syntax, is too large, or is not Unicode text.
    """

    def __init__(self, pattern: str, *, ignore_case: bool) -> None:
        options = re2.Options()
        options.log_errors = False
        options.never_nl = True
        options.max_mem = _MAX_PROGRAM_BYTES
        options.case_sensitive = not ignore_case
        try:
            self._compiled: Any = re2.compile("(?m)" + pattern, options)
        except UnicodeEncodeError:
            raise BadArguments("not an RE2 pattern: it contains a lone surrogate; leave it out") from None
        except re2.error as invalid:
            raise BadArguments(
                f"not an RE2 pattern: {_describe_error(invalid)}; correct or simplify it"
            ) from None

    def matching_lines(self, data: bytes) -> Iterator[tuple[int, str]]:
        """Yield number (from 1) and text of each line of `data` that matches, in order."""
        position, number, counted_to = 0, 1, 0
        while position < len(data):
            match = self._compiled.search(data, position)
            if match is None:
                return
            start = data.rfind(b"\n", 0, match.start()) + 1
            end = data.find(b"\n", match.start())
            end = len(data) if end < 0 else end
            if start == len(data):
                return  # No line follows the final newline.
            number += data.count(b"\n", counted_to, start)
            counted_to = start
            yield number, _format_line(data[start:end])
            position = end + 1


def _format_line(line: bytes) -> str:
    text = line[: 4 * MAX_LINE_CHARS].decode("utf-8", "replace").rstrip("\r")
    return text if len(text) <= MAX_LINE_CHARS else text[:MAX_LINE_CHARS] + "…"


def _describe_error(invalid: Exception) -> str:
    detail = invalid.args[0] if invalid.args else "cannot be compiled"
    text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
    return " ".join(text.split())[:100]


# -- workbench ---------------------------------------------------------------------------------------

MAX_TEXT_CHARS: Final = 60_000
"""Maximum characters of one result: about the capacity of a small model's context."""

MAX_LISTED: Final = 500
"""Maximum number of names in the result of one `ls`."""

MAX_CACHED_BYTES: Final = 8 << 20
"""Maximum bytes of files that a run caches from one grep for the next."""

MAX_CHANGED_LINES: Final = 20
"""Maximum number of changed lines in the result of one `edit`."""


class Workbench:
    """The tools `read_file`, `grep`, `ls`, `write_file` and `edit` over the memory of one run.

    Args:
        policy: the effective policy of the run.
        scopes: the scopes of the run.
        roots: handles of the scopes whose content the run may read; empty in `clean` runs.
        must_read: whether a file must have been read before `write_file` may replace it. If so, consecutive
            greps of all scopes also share one reading of the files, because a run makes them in one turn.
        links: links by scope, for the scopes whose links are resolved under their root.
        injected: entries that count as read, with the digests of the injected files.
    """

    def __init__(
        self,
        policy: Policy,
        scopes: Collection[Scope],
        roots: Mapping[Scope, Root],
        *,
        must_read: bool,
        links: Mapping[Scope, Links] = NO_LINKS,
        injected: InjectedDigests = NOTHING_INJECTED,
    ) -> None:
        self._policy = policy
        self._judge = PolicyEvaluator(policy)
        self._scopes = tuple(scopes)
        self._paths = PathResolver(self._judge, self._scopes, links)
        self._overlay = Overlay(roots)
        for path, seen in injected.items():
            self._overlay.claim(path, seen)
        self._must_read = must_read
        self._cached_files: list[tuple[CanonicalPath, bytes]] | None = None
        self._read_bytes = 0
        self._scanned_bytes = 0

    def call(self, tool: object, arguments: object) -> Outcome:
        """Execute one tool call; return every error as an outcome, for any tool or arguments."""
        try:
            name = check_tool(tool)
            if name != "grep":
                self._cached_files = None
            text = self._execute(parse(name, arguments))
        except (PathEscape, Refusal, ToolError) as error:
            return build_error_outcome(error)
        return build_allowed_outcome(text)

    def change_set(self) -> ChangeSet:
        """Return the changes that the run has proposed until now."""
        return self._overlay.change_set()

    def _execute(self, arguments: Arguments) -> str:
        tools: Mapping[type[Arguments], Callable[..., str]] = {
            ReadFile: self._read_file,
            Ls: self._ls,
            Grep: self._grep,
            WriteFile: self._write_file,
            Edit: self._edit,
        }
        return tools[type(arguments)](arguments)

    # -- reading ---------------------------------------------------------------------------------

    def _read_file(self, arguments: ReadFile) -> str:
        reached = self._paths.resolve_file(arguments.path, Verb.READ)
        content = self._overlay.read(reached.path)
        lines = _split_lines(decode(content))
        wanted = lines[arguments.offset : arguments.offset + arguments.limit]
        output_lines: list[str] = []
        remaining_chars = MAX_TEXT_CHARS
        for number, line in enumerate(wanted, arguments.offset + 1):
            remaining_chars -= len(line) + 8
            if remaining_chars < 0:
                break
            output_lines.append(f"{number}\t{line}")
        last = arguments.offset + len(output_lines)
        if last < len(lines):
            output_lines.append(f"[truncated: {len(lines)} lines in all; continue with offset={last}]")
        answer = self._charge_read("\n".join([*(output_lines or ["[empty]"]), *_format_target_line(reached)]))
        # Only now: a file that did not fit into the result was not read.
        self._overlay.claim(reached.path, digest(content))
        return answer

    def _ls(self, arguments: Ls) -> str:
        if not arguments.path:
            return self._charge_read("\n".join(f"{scope}/" for scope in self._scopes))
        reached = self._paths.resolve_directory(arguments.path)
        visible = [child for child in self._list_children(reached) if self._is_visible(*child)]
        lines = [self._format_name(*child) for child in visible[:MAX_LISTED]]
        more = "" if len(visible) <= MAX_LISTED else f", the first {MAX_LISTED} listed; grep finds the others"
        return self._charge_read(
            "\n".join([*lines, f"[{len(visible)} in all{more}]", *_format_target_line(reached)])
        )

    def _list_children(self, directory: ResolvedTarget) -> list[tuple[ResolvedTarget, Kind]]:
        """Return the files and directories in a directory, by name.

        A link is listed as its target if the target exists.
        """
        try:
            children = self._overlay.list_children(directory.path)
        except NotFound:
            if directory.path.rel:
                raise
            children = []
        found = {
            path.name: (reached, kind)
            for path, kind in children
            if (reached := directory.resolve_child(path)) is not None
        }
        for link in self._paths.iterate_links(directory):
            if link.requested.parent == directory.requested and (kind := self._get_kind(link)) is not None:
                found[link.requested.name] = (link, kind)
        return [found[name] for name in sorted(found)]

    def _get_kind(self, link: ResolvedTarget) -> Kind | None:
        kind = self._overlay.read_kind(link.path)
        return None if link.is_directory and kind == "file" else kind

    def _is_visible(self, reached: ResolvedTarget, kind: Kind) -> bool:
        """Return whether `ls` lists a name: a file if granted, a directory if not denied and not empty."""
        if kind == "file":
            return self._may_list(reached)
        if self._paths.is_directory_denied(reached):
            return False
        links = (link for link in self._paths.iterate_links(reached) if self._get_kind(link) == "file")
        return any(map(self._may_list, chain(self._iterate_files(reached), links)))

    def _may_list(self, reached: ResolvedTarget) -> bool:
        """Return whether the policy lets the run list a file, and the gates for text accept its names."""
        trust = self._policy.get_trust(reached.path.scope)
        is_granted = self._paths.allows(reached, Verb.LIST)
        return is_granted and all(find_name_gate(name.text, trust) is None for name in reached.names)

    def _iterate_files(self, directory: ResolvedTarget) -> Iterator[ResolvedTarget]:
        """Yield every file under a directory, without following links."""
        for path in self._overlay.iterate_files(directory.path, self._may_enter):
            if (reached := directory.resolve_child(path)) is not None:
                yield reached

    def _may_enter(self, directory: CanonicalPath) -> bool:
        return not self._judge.is_directory_denied(directory)

    def _format_name(self, reached: ResolvedTarget, kind: Kind) -> str:
        name = reached.requested.name
        if kind == "directory":
            return f"{name}/"
        size = self._overlay.read_size(reached.path)
        return name if size is None else f"{name} ({size} bytes)"

    def _grep(self, arguments: Grep) -> str:
        pattern = Pattern(arguments.pattern, ignore_case=arguments.ignore_case)
        reached = self._paths.resolve_any(arguments.path) if arguments.path else None
        hits = list(islice(self._iterate_hits(pattern, reached), arguments.max_matches))
        if len(hits) == arguments.max_matches:
            hits.append(f"[stopped at {arguments.max_matches} matches; narrow the pattern or the path]")
        return self._charge_read(
            "\n".join(
                [_join_within_limit(hits) or "no matches", *(_format_target_line(reached) if reached else ())]
            )
        )

    def _iterate_hits(self, pattern: Pattern, reached: ResolvedTarget | None) -> Iterator[str]:
        """Yield the lines that match, in the format of the result.

        Args:
            pattern: the pattern.
            reached: the file or directory to search; None: all scopes.
        """
        for path, data in self._iterate_searched(reached) if reached else self._iterate_all_scopes():
            self._scanned_bytes += len(data)
            if self._scanned_bytes > self._policy.limits.scan_bytes:
                raise BudgetSpent("this run has searched its maximum of bytes; use the results that you have")
            for number, line in pattern.matching_lines(data):
                yield f"{path.text}:{number}: {line}"

    def _iterate_all_scopes(self) -> Iterator[tuple[CanonicalPath, bytes]]:
        if self._cached_files is not None:
            yield from self._cached_files
            return
        reading: list[tuple[CanonicalPath, bytes]] = []
        remaining_bytes = MAX_CACHED_BYTES
        for scope in self._scopes:
            root = CanonicalPath(scope, RelPath(""))
            for path, data in self._iterate_readable(ResolvedTarget(root, root)):
                remaining_bytes -= len(data)
                if remaining_bytes >= 0:
                    reading.append((path, data))
                yield path, data
        if remaining_bytes >= 0 and self._must_read:
            self._cached_files = reading

    def _iterate_searched(self, reached: ResolvedTarget) -> Iterator[tuple[CanonicalPath, bytes]]:
        """Yield path and bytes of each file in `reached` that a grep may list and read."""
        path = reached.path
        if path.rel and not reached.is_directory and self._overlay.is_file(path):
            self._paths.require(Verb.LIST, reached)
            self._paths.require(Verb.READ, reached)
            data = self._overlay.read(path)
            decode(data)
            yield path, data
            return
        self._paths.require_directory(reached)
        if path.rel:
            self._overlay.list_children(path)  # Raises if the directory does not exist.
        yield from self._iterate_readable(reached)

    def _iterate_readable(self, directory: ResolvedTarget) -> Iterator[tuple[CanonicalPath, bytes]]:
        for below in self._iterate_files(directory):
            if not (self._paths.allows(below, Verb.READ) and self._may_list(below)):
                continue
            try:
                data = self._overlay.read(below.path)
                decode(data)
            except (PathEscape, ToolError):
                continue  # A file that cannot be read as private text has no lines to match.
            yield below.path, data

    # -- proposing -------------------------------------------------------------------------------

    def _write_file(self, arguments: WriteFile) -> str:
        # Denied before the file is accessed, if neither verb is granted.
        reached = self._paths.resolve_file(arguments.path, Verb.MODIFY, Verb.CREATE)
        path = reached.path
        base = self._overlay.read_base(path)
        if base is None:
            self._paths.require(Verb.CREATE, reached)
            check_creatable(path)
            self._overlay.check_new_name(path)
        else:
            self._paths.require(Verb.MODIFY, reached)
            if self._must_read and not self._overlay.is_known(path):
                raise ToolError(
                    f"{path.text} exists; read it with read_file before you replace it", code="not_read"
                )
        content = self._check_proposal(path, arguments.content)
        self._overlay.write(path, content, base)
        done = "created" if base is None else "replaced"
        left_out = "" if content == arguments.content.encode() else "; a possible secret was removed"
        return f"{done} {path.text} ({len(content)} bytes)" + _format_target_suffix(reached) + left_out

    def _edit(self, arguments: Edit) -> str:
        reached = self._paths.resolve_file(arguments.path, Verb.MODIFY)
        path = reached.path
        content_before = self._overlay.read(path)
        before = decode(content_before)
        self._overlay.claim(path, digest(content_before))
        if arguments.old_string == arguments.new_string:
            raise BadArguments("edit: old_string and new_string are the same; nothing to change")
        first = before.find(arguments.old_string)
        if first < 0:
            raise ToolError(
                f"old_string does not occur in {path.text}; read the file and copy it exactly",
                code="no_match",
            )
        if not arguments.replace_all and before.find(arguments.old_string, first + 1) >= 0:
            raise ToolError(
                f"old_string occurs more than once in {path.text}; add context or set replace_all",
                code="not_unique",
            )
        count = before.count(arguments.old_string) if arguments.replace_all else 1
        growth = len(arguments.new_string) - len(arguments.old_string)
        if len(before) + count * growth > MAX_FILE_BYTES:
            raise TooLarge(f"{path.text} would exceed {MAX_FILE_BYTES} bytes; write less")
        after = before.replace(arguments.old_string, arguments.new_string, count)
        content = self._check_proposal(path, after)
        result = f"changed {path.text}" + _format_target_suffix(reached)
        if content != after.encode():
            result += "; a possible secret was removed"
        elif self._paths.allows(reached, Verb.READ):
            result = self._charge_read(
                f"{result}\n{_format_changed_lines(after, first, arguments.new_string)}"
            )
        self._overlay.rewrite(path, content, content_before)
        return result

    def _check_proposal(self, path: CanonicalPath, text: str) -> bytes:
        """Return `text` as bytes, if gates, quotas and budgets let the run propose it for `path`."""
        if self._policy.content.secrets == "redact":
            text = redact_secrets(text)
        content = encode(text)
        limits = self._policy.limits
        if len(content) > MAX_FILE_BYTES:
            raise TooLarge(f"{path.text} would exceed {MAX_FILE_BYTES} bytes; write less")
        for quota in self._judge.quotas_for(path):
            if len(content) > quota.max_file_bytes:
                raise QuotaExceeded(f"a file here may have at most {quota.max_file_bytes} bytes; write less")
        if self._overlay.bytes_written(without=path) + len(content) > limits.write_bytes:
            raise BudgetSpent(f"a run may write at most {limits.write_bytes} bytes; write less")
        if not self._overlay.has_pending(path) and self._overlay.files_written >= limits.files_written:
            raise BudgetSpent(f"a run may write at most {limits.files_written} files; finish with these")
        check_entry(content, path.rel, self._policy.content)
        return content

    def _charge_read(self, text: str) -> str:
        """Count `text` as read by the run, and return it.

        Raises:
            BudgetSpent: the run may not read that much.
        """
        self._read_bytes += len(text.encode())
        if self._read_bytes > self._policy.limits.read_bytes:
            raise BudgetSpent("this run has read its maximum of bytes; use the results that you have")
        return text


def _format_target_line(reached: ResolvedTarget) -> list[str]:
    """Return the line that states the target of a path with links; [] for other paths."""
    return (
        []
        if reached.path == reached.requested
        else [f"[{reached.requested.text} points to {reached.path.text}]"]
    )


def _format_target_suffix(reached: ResolvedTarget) -> str:
    return "" if reached.path == reached.requested else f"; {reached.requested.text} points there"


def _split_lines(text: str) -> list[str]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _join_within_limit(lines: list[str]) -> str:
    """Return `lines` joined, cut at the end of a line within `MAX_TEXT_CHARS`."""
    text = "\n".join(lines)
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return text[: text.rindex("\n", 0, MAX_TEXT_CHARS)] + "\n[cut; narrow the pattern or the path]"


def _format_changed_lines(text: str, position: int, inserted: str) -> str:
    first = text.count("\n", 0, position)
    last = first + inserted.count("\n") + 1
    lines = _split_lines(text)[first : min(last, first + MAX_CHANGED_LINES)]
    return _join_within_limit([f"{number}\t{line[:500]}" for number, line in enumerate(lines, first + 1)])
