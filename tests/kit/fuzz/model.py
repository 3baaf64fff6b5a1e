"""The memory as a run should see it: a dictionary of what it wrote, over the plain files that are there.

Shares no code with the subject. `known` gives the texts that a path may have, several where a neighbour acted
while the subject looked.
"""

import contextlib
import hashlib
import re

NUMBERED = re.compile(r"([1-9][0-9]*)\t(.*)", re.DOTALL)


class Model:
    """What one run may see and has proposed.

    Attributes:
        pending: what it proposes, by logical path: the texts that it may be, one of them for sure.
        claims: what a path held when the run first read or wrote it: texts, None for no plain file.
    """

    def __init__(self, ground, *, resolves_links):
        self.ground, self.resolves_links = ground, resolves_links
        self.pending = {}
        self.claims = {}
        if resolves_links:
            ground.remember_links()

    def logical(self, path):
        """The one name of what a path spells, by the links that the run began with; None: it has none."""
        text = path.removeprefix("/memories/") if path.startswith("/memories/") else path.removeprefix("/")
        if "\0" in text or text.encode(errors="replace") != text.encode(errors="surrogatepass"):
            return None
        return self.ground.resolved(text) if self.resolves_links else text

    def known(self, path):
        """The texts that a path may have; none, where there is no plain file."""
        logical = self.logical(path)
        if logical in self.pending:
            return set(self.pending[logical])
        found = self.ground.read(logical) if logical else None
        return set() if found is None else {found}

    def on_disk(self, path):
        """The texts that a path may have on the disk, None for no plain file."""
        logical = self.logical(path)
        return {self.ground.read(logical)} if logical else set()

    def claim(self, path, states):
        """The run was shown or replaces one of these states of a path; at commit it has to be right."""
        self.claims.setdefault(self.logical(path), states)

    def broken_claims(self):
        """Paths that no longer hold what they held."""
        return [path for path, states in self.claims.items() if self.ground.read(path) not in states]

    def learn(self, tool, arguments, outcome, known):
        """Check what an allowed call showed against what was known, and take in what it wrote."""
        match tool:
            case "write_file":
                self.pending[self.logical(arguments["path"])] = {arguments["content"].encode()}
            case "edit":
                self.pending[self.logical(arguments["path"])] = set(edited(arguments, known))
            case "read_file":
                assert any(shows(outcome.text, content) for content in known), "it showed what is not there"

    def check_proposed(self, changes):
        """What is proposed is what the allowed writes said, neither more nor less."""
        proposed = {change.path: change.sha256_after for change in changes}
        assert set(proposed) == set(self.pending)
        for path, digest in proposed.items():
            fitting = {text for text in self.pending[path] if hashlib.sha256(text).hexdigest() == digest}
            assert fitting, f"{path} is not what was written"
            self.pending[path] = fitting

    def check_effect(self, before, after):
        """The roots are what they were, with what was proposed in them and the indexes of touched scopes."""
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
    """Whether numbered lines are those of a file, as far as they are shown."""
    with contextlib.suppress(UnicodeDecodeError):
        lines = content.decode().split("\n")
        found = [NUMBERED.fullmatch(line) for line in text.split("\n")]
        shown = [match.groups() for match in found if match]
        return all(lines[int(number) - 1].removesuffix("\r") == line for number, line in shown)
    return False


def is_readable(content):
    """Whether a tool should show a file."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False
