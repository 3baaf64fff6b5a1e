"""The memory as a run should see it: its writes as a dictionary over the regular files on disk.

Shares no code with the subject. `known` returns the possible texts of a path, several if a peer acted while
the subject was reading.
"""

import contextlib
import hashlib
import re

NUMBERED = re.compile(r"([1-9][0-9]*)\t(.*)", re.DOTALL)


class Model:
    """The view of one run and its proposals.

    Attributes:
        pending: its proposals by logical path: the possible texts, one of which is right.
        claims: content of a path when the run first read or wrote it: texts, None for no regular file.
    """

    def __init__(self, ground, *, resolves_links):
        self.ground, self.resolves_links = ground, resolves_links
        self.pending = {}
        self.claims = {}
        if resolves_links:
            ground.remember_links()

    def logical(self, path):
        """Return the canonical name of a path by the links at the start of the run; None: it has none."""
        text = path.removeprefix("/memories/") if path.startswith("/memories/") else path.removeprefix("/")
        if "\0" in text or text.encode(errors="replace") != text.encode(errors="surrogatepass"):
            return None
        return self.ground.resolved(text) if self.resolves_links else text

    def known(self, path):
        """Return the possible texts of a path; empty if it is not a regular file."""
        logical = self.logical(path)
        if logical in self.pending:
            return set(self.pending[logical])
        found = self.ground.read(logical) if logical else None
        return set() if found is None else {found}

    def on_disk(self, path):
        """Return the possible texts of a path on disk; None for no regular file."""
        logical = self.logical(path)
        return {self.ground.read(logical)} if logical else set()

    def claim(self, path, states):
        """Record that the run read or replaces one of these states of a path; it must be true at commit."""
        self.claims.setdefault(self.logical(path), states)

    def broken_claims(self):
        """Return the paths whose content has changed since their claim."""
        return [path for path, states in self.claims.items() if self.ground.read(path) not in states]

    def learn(self, tool, arguments, outcome, known):
        """Check the output of an allowed call against the known texts, and record what it wrote."""
        match tool:
            case "write_file":
                self.pending[self.logical(arguments["path"])] = {arguments["content"].encode()}
            case "edit":
                self.pending[self.logical(arguments["path"])] = set(edited(arguments, known))
            case "read_file":
                assert any(shows(outcome.text, content) for content in known), "the output is not in the file"

    def check_proposed(self, changes):
        """Assert that the proposal contains exactly what the allowed writes contained."""
        proposed = {change.path: change.sha256_after for change in changes}
        assert set(proposed) == set(self.pending)
        for path, digest in proposed.items():
            fitting = {text for text in self.pending[path] if hashlib.sha256(text).hexdigest() == digest}
            assert fitting, f"{path} is not what was written"
            self.pending[path] = fitting

    def check_effect(self, before, after):
        """Assert that the roots changed only by the proposal and by the indexes of touched scopes."""
        for path, (content,) in self.pending.items():
            assert after[path][0] == "file"
            assert after[path][3] == content
        made = {parent for path in self.pending for parent in parents(path)}
        for path in {*before, *after} - set(self.pending):
            if path.partition("/")[0] in self.touched and is_derived(path):
                continue
            if path in made and path not in before:
                assert after[path] == ("directory",)
            else:
                assert before.get(path) == after.get(path), path

    @property
    def touched(self):
        return {path.partition("/")[0] for path in self.pending}


def parents(path):
    above = path.split("/")[:-1]
    return ["/".join(above[:depth]) for depth in range(1, len(above) + 1)]


def is_derived(path):
    rel = path.partition("/")[2]
    return rel in {"MEMORY.md", "index"} or rel.startswith(("index/", "memory-before-muniment"))


def edited(arguments, known):
    old, new = arguments["old_string"], arguments["new_string"]
    for content in known:
        with contextlib.suppress(UnicodeDecodeError):
            text = content.decode()
            if old in text:
                yield text.replace(old, new, -1 if arguments.get("replace_all") else 1).encode()


def shows(text, content):
    """Return whether numbered lines are an excerpt of a file."""
    with contextlib.suppress(UnicodeDecodeError):
        lines = content.decode().split("\n")
        found = [NUMBERED.fullmatch(line) for line in text.split("\n")]
        shown = [match.groups() for match in found if match]
        return all(lines[int(number) - 1].removesuffix("\r") == line for number, line in shown)
    return False


def is_readable(content):
    """Return whether a tool should display a file."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False
