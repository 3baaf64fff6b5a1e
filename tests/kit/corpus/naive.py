"""Deliberately weak memory tools, so that the interpreter has failures to report.

`NaiveTools` normalises paths as text and compares prefixes, opens files by path, writes immediately, and
formats indexes without escaping. `RealpathTools` resolves links before it compares, and then opens by path
again.
"""

import os
import re
from pathlib import Path
from urllib.parse import quote

from muniment.testing.corpus import CallResult, CommitOutcome
from muniment.testing.corpus.stage import ROOTS

MAX_LINK_CHECKS = 2_000
"""Number of times that `RealpathTools` checks whether a folder has become a link."""


class NaiveTools:
    """Tools that check paths with `normpath` and `startswith`."""

    commits_often = True

    def __init__(self, stage, _case=None):
        self.stage = stage
        self._written = set()

    def call(self, tool, arguments):
        try:
            text = getattr(self, f"_{tool}")(**arguments)
        except PermissionError as refused:
            return CallResult("deny", "path_escape", str(refused), "")
        except (OSError, ValueError) as error:
            return CallResult("error", "not_found", type(error).__name__, "")
        return CallResult("allow", None, text, "")

    def commit(self):
        for scope in self._written:
            root = self.stage.get_scope_path(scope)
            lines = [
                self._format_index_line(root, path) for path in root.rglob("*.md") if path.name != "MEMORY.md"
            ]
            (root / "MEMORY.md").write_text("".join(["# Memory\n\n", *lines]))
        return CommitOutcome(None, "")

    def close(self):
        return ""

    def _resolve(self, path):
        return os.path.normpath(path)

    def _resolve_checked(self, path):
        path = path.removeprefix("/memories/")
        full = self._resolve(path if path.startswith("/") else f"{self.stage.tree}/{path}")
        if not any(full.startswith(str(self.stage.get_scope_path(scope))) for scope in ROOTS):
            raise PermissionError("outside")
        return Path(full)

    def _read_file(self, path):
        return self._resolve_checked(path).read_text()

    def _ls(self, path):
        return "\n".join(sorted(each.name for each in self._resolve_checked(path).iterdir()))

    def _grep(self, pattern, path):
        files = (each for each in self._resolve_checked(path).rglob("*") if each.is_file())
        return "\n".join(each.name for each in files if re.search(pattern, each.read_text()))

    def _write_file(self, path, content):
        self._write(path, self._resolve_checked(path), content)
        return "written"

    def _write(self, path, full, content):
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(content)
        self._written.add(path.removeprefix("/memories/").split("/")[0])

    def _edit(self, path, old_string, new_string):
        before = self._read_file(path)
        if before.count(old_string) != 1:
            raise ValueError(old_string)
        return self._write_file(path, before.replace(old_string, new_string))

    def _format_index_line(self, root, path):
        text = path.read_text()
        named = re.search(r"^(?:name:|#) (.*)$", text, re.MULTILINE)
        described = re.search(r"^description: (.*)$", text, re.MULTILINE)
        target = quote(path.relative_to(root).as_posix())
        return f"- [{named[1] if named else path.stem}]({target}) — {described[1] if described else ''}\n"


class RealpathTools(NaiveTools):
    """Tools that check with `realpath` and `commonpath`, then open the path: safe until an attacker is
    faster.

    It gives an attacker time between check and use: until the folder is a link, or for a number of checks. On
    a busy machine both would otherwise rarely run at the same time.
    """

    def _resolve(self, path):
        if not self._is_inside(path):
            return "/"
        folder = Path(path).parent
        for _ in range(MAX_LINK_CHECKS):
            if folder.is_symlink():
                break
            os.sched_yield()
        return path

    def _is_inside(self, path):
        full = os.path.realpath(path)
        roots = (str(self.stage.get_scope_path(scope)) for scope in ROOTS)
        return any(os.path.commonpath((root, full)) == root for root in roots)
