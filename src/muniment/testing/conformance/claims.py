"""What each tool's own authors say that it covers, so that nobody is blamed for what they never claimed.

Taken from their documentation and code, as of the versions named; the words are ours. Where they are silent,
a class is theirs if they speak of what it attacks at all: names, links, and what a path leads to.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from muniment.testing.corpus import Case, Kind


@dataclass(frozen=True, slots=True)
class Claims:
    """A tool's own threat model.

    Attributes:
        covers: what it claims, in a sentence or two.
        leaves_out: what it does not, in one; empty: nothing.
        beyond: classes, and single cases, of the corpus that lie outside of it.
        hides_paths: whether it claims that no host path comes out.
        sources: where that is said.
    """

    covers: str
    leaves_out: str = ""
    beyond: frozenset[str] = frozenset()
    hides_paths: bool = True
    sources: tuple[str, ...] = ()

    def leave_out(self, case: Case, bad: Collection[Kind]) -> bool:
        """Whether what was seen in a case lies outside of what is claimed.

        Args:
            case: that was run.
            bad: the kinds of failure that made its outcome a bad one.
        """
        if set(bad) == {Kind.PATH} and not self.hides_paths:
            return True
        return bool({case["class"], case["id"]} & self.beyond)


MUNIMENT: Final = Claims(
    covers="Every class of the corpus, also while another process of the same user exchanges names.",
    sources=("threat-model/README.md",),
)

ANTHROPIC: Final = Claims(
    covers=(
        "A model's path that leaves /memories, by .. or a symbolic link: it is resolved and compared with "
        "the root. Other users of the machine: files are made 0600, directories 0700. A file is opened "
        "without following a link at its own name, and only a regular one is read."
    ),
    leaves_out=(
        "A process that races the tool's own system calls, and the size of what is read, as the store "
        "beneath says; hard links, which are regular files; a root that is replaced while the tool has it; "
        "host paths in messages of the system."
    ),
    beyond=frozenset({"race", "hardlink", "root", "late-change", "disk-huge-read", "own-sparse-edit"}),
    hides_paths=False,
    sources=(
        "docs.claude.com/en/docs/agents-and-tools/tool-use/memory-tool: operations are to stay in /memories",
        "anthropic 2.12.0, lib/tools/_beta_builtin_memory_tool.py: _validate_path, _secure_mkdir",
        "anthropic 2.12.0, lib/tools/_file_store.py: docstring, open_regular_file",
    ),
)

MCP_FILESYSTEM: Final = Claims(
    covers=(
        "All operations are restricted to the allowed directories: the path is resolved, links included, and "
        "compared. A link that is put at a file's own name between check and write is not written through."
    ),
    leaves_out=(
        "Directories that are exchanged between check and use, races of reads, hard links, special files, a "
        "replaced root, sizes, host paths, and walls between allowed directories. The servers are reference "
        "implementations, in their authors' words not production-ready."
    ),
    beyond=frozenset(
        {"race", "hardlink", "special-file", "root", "late-change", "cross-scope", "content-huge"}
        | {"disk-huge-read"}
    ),
    hides_paths=False,
    sources=(
        "github.com/modelcontextprotocol/servers, SECURITY.md",
        '@modelcontextprotocol/server-filesystem 2026.8.31, README.md, "Directory Access Control"',
        "the same, dist/lib.js: validatePath, writeFileContent, applyFileEdits",
    ),
)

UNKNOWN: Final = Claims(covers="What its authors say; the kit does not know it and marks nothing.")
