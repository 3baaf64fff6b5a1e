"""With any answers of the kernel's ports, protected files stay unchanged and a commit is whole or absent.

Gates, facts, a journal and a caller that lie, lose, repeat and raise, over real directories. The writable
names are a literal set; the oracle shares no code with the kernel.
"""

import hashlib
import shutil
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.paths import forge_path, make_path
from kit.store.bench import take_snapshot, write_files
from muniment.kernel.apply import apply_changes, lock_roots, seal_index_files
from muniment.kernel.binding import bind_all
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, Claim, FileChange, IndexFile, JudgedChanges, Precondition
from muniment.kernel.commit import transaction
from muniment.kernel.refusal import MunimentError, Refused, StoreConflict
from muniment.kernel.write import Intent, get_index_temporary_name, recover
from muniment.policy.load import parse_policy

POLICY = parse_policy(
    """
schema = "muniment-policy/1"
name = "open"
description = "Everything but some names."
scopes = { user = { trust = "owner", commit = "auto" }, project = { trust = "workspace", commit = "auto" } }
allow = [{ id = "all", verbs = ["list", "read", "create", "modify"], paths = ["/**"], why = "tests" }]
deny = [
{ id = "shut", verbs = ["create", "modify", "delete"], paths = ["secret.md", "private/"], why = "tests" },
{ id = "kept", verbs = ["delete"], paths = ["kept.md"], why = "tests" },
]
quota = [{ id = "all", paths = ["/**"], max_file_bytes = 1000, max_files = 100, max_total_bytes = 100000 }]
""",
    where="open",
    parents=str,
)

STANDING = {
    "user/a.md": b"# A\nalpha\n",
    "user/topic/t.md": b"# T\ntopic\n",
    "user/kept.md": b"# K\nkept\n",
    "user/secret.md": b"secret\n",
    "user/private/p.md": b"private\n",
    "project/p.md": b"# P\nproject\n",
    "project/private/deep/p.md": b"deep\n",
    "outside/secret.md": b"outside\n",
    "outside/hard.md": b"hard\n",
    "outside/empty/.keep": b"",
}
OPEN = ["user/a.md", "user/b.md", "user/topic/t.md", "user/topic/u.md", "user/new/n.md", "user/new/deep/d.md"]
OPEN += ["user/kept.md", "project/p.md", "project/q.md", "project/new/n.md"]
PROTECTED = [
    "user/secret.md",
    "user/SECRET.md",
    "user/topic/Secret.md",
    "user/private/p.md",
    "user/private/n.md",
]
PROTECTED += ["user/PRIVATE/n.md", "user/private/deep/n.md", "project/private/deep/p.md", "project/secret.md"]
PROTECTED += ["user/link.md", "user/hard.md", "user/way/secret.md", "user/way/n.md", "user/way/empty/.keep"]
PROTECTED += ["user", "project", "other/a.md", "outside/secret.md"]
FORGED = ["user/../outside/secret.md", "user//etc/passwd", "user/way/../../outside/hard.md"]
FORGED += ["user/./secret.md"]
DERIVED = {"user/MEMORY.md", "project/MEMORY.md"}
FOLDERS = ("user", "user/topic", "user/new", "user/new/deep", "project", "project/new")
MADE = ["user/new", "user/new/deep", "user/topic", "user/private", "user/way", "user/way/empty", "user"]
BODIES = [b"one\n", b"two two\n", b"three three three\n", *(STANDING[path] for path in sorted(STANDING)[4:8])]
TOKENS = ["00112233aabb", "ffffffffffff"]
FALSE_TOKENS = [*TOKENS, "", "zz", "../../outside", "00" * 20]
SCOPES = ("user", "project")


class Stop(BaseException):
    """Ends a call as a signal would."""


RAISED = (MunimentError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, Stop)
ERRORS = (OSError("port"), ValueError("port"), Refused("port", rule="port", layer="port"), Stop())


def sha(content):
    return None if content is None else hashlib.sha256(content).hexdigest()


def make_patience():
    return Deadline(time.monotonic() + 60)


def parse_path(text):
    scope, _, rel = text.partition("/")
    return forge_path(scope, rel) if text in FORGED else make_path(scope, rel)


def return_or_raise(item):
    """Raise an error that a port should raise, or return any other value."""
    if isinstance(item, BaseException):
        raise item
    return item


class Facts:
    """Facts that return fixed values, even wrong ones."""

    def __init__(self, *results):
        self.results = results or (frozenset(), (0, 0), False)

    def find_aliases(self, _directory, _name):
        return return_or_raise(self.results[0])

    def usage(self, _scope, _counts):
        return return_or_raise(self.results[1])

    def is_index(self, _scope, _content):
        return return_or_raise(self.results[2])


class Gates:
    """Gates that return given results in turn."""

    def __init__(self, answers):
        self.answers = answers

    def __call__(self, _change):
        self.answers = [*self.answers[1:], self.answers[0]]
        return return_or_raise(self.answers[0])


class LyingJournal:
    """A journal that stores nothing and returns given values."""

    def __init__(self, intents, knows, number, errors):
        self.intents, self.known, self.number, self.errors = intents, knows, number, errors

    def begin(self, _judged, _token):
        return_or_raise(self.errors.get("begin"))
        return self.number

    def finish(self, _number, _judged, _notes):
        return_or_raise(self.errors.get("finish"))

    def abandon(self, _number, _scopes, _recovered=None):
        return_or_raise(self.errors.get("abandon"))

    def list_unfinished(self, _scopes):
        return_or_raise(self.errors.get("unfinished"))
        return self.intents

    def is_known(self, _path, _of):
        return return_or_raise(self.known)


class HonestJournal:
    """An honest journal that may stop before or after one call, or be killed with the whole state."""

    def __init__(self, tree):
        self.tree, self.begun, self.done, self.known = tree, {}, set(), set()
        self.stops, self.frozen, self.last = {}, None, 0

    def step(self, call, act):
        """Run the act, and stop once where requested."""
        when = self.stops.pop(call, None)
        if when == "before":
            raise Stop
        result = act()
        if when == "killed":
            self.frozen = (self.tree(), dict(self.begun), set(self.done))
        if when is not None:
            raise Stop
        return result

    def begin(self, judged, token):
        return self.step("begin", partial(self._begin, judged, token))

    def _begin(self, judged, token):
        self.last += 1
        number = self.last
        changes = dict(enumerate(judged.change_set.changes))
        made = tuple({each: None for group in judged.new_directories for each in group})
        self.begun[number] = (token, changes, made)
        for each in changes.values():
            self.known |= {(each.path.text, sha(each.before)), (each.path.text, sha(each.after))}
        return number

    def finish(self, number, _judged, _notes):
        def act():
            del self.begun[number]
            self.done.add(number)

        self.step("finish", act)

    def abandon(self, number, scopes, _recovered=None):
        def act():
            token, changes, made = self.begun.pop(number)
            rest = {at: each for at, each in changes.items() if each.path.scope not in scopes}
            if rest:
                self.begun[number] = (token, rest, tuple(each for each in made if each.scope not in scopes))

        self.step("abandon", act)

    def list_unfinished(self, scopes):
        def act():
            intents = [
                Intent(number, *file_content)
                for number, file_content in sorted(self.begun.items(), reverse=True)
            ]
            return [it for it in intents if any(each.path.scope in scopes for each in it.changes.values())]

        return self.step("unfinished", act)

    def is_known(self, path, of):
        return self.step("knows", lambda: (path.text, of) in self.known)


class HostileCaller:
    """A caller of a transaction whose steps have given results."""

    def __init__(self, parts, hooks):
        self.default_parts, self.hooks, self.judged, self.is_accepted, self.peer = (
            parts,
            hooks,
            None,
            None,
            None,
        )
        self.followers = {
            "index": self.write_index,
            "forge": self.forge,
            "again": lambda locks, _: apply_changes(
                self.judged, locks, lambda at: f".muniment-{at:016x}.tmp"
            ),
        }

    @property
    def parts(self):
        return return_or_raise(self.hooks.get("parts", self.default_parts))

    def after_recovery(self):
        return_or_raise(self.hooks.get("recovered"))

    def name_files(self):
        return return_or_raise(self.hooks.get("placed", self.default_parts))

    def finalize(self, change):
        other = return_or_raise(self.hooks.get("completed", {}))
        return replace(change, **other) if isinstance(other, dict) else other

    def approve(self, judged):
        self.judged, self.is_accepted = judged, return_or_raise(self.hooks.get("accepted", True))
        if self.peer is not None:
            self.peer(judged.change_set.paths[-1].text)
        return self.is_accepted

    def update_derived(self, locks, token):
        how = self.hooks.get("followed", ())
        for each in how if isinstance(how, list) else ():
            self.followers[each](locks, token)
        return ("note",) if isinstance(how, list) else return_or_raise(how)

    def write_index(self, locks, token):
        for scope in locks:
            entry = locks[scope].trusted_path / "MEMORY.md"
            before = entry.read_bytes() if entry.exists() else Precondition.ABSENT
            apply_changes(
                seal_index_files([IndexFile(make_path(scope, "MEMORY.md"), before, b"index\n")]),
                locks,
                partial(get_index_temporary_name, token),
            )

    def forge(self, locks, _token):
        """Try to write unjudged changes; each attempt must fail."""
        change = FileChange(make_path("user", "secret.md"), sha(b"secret\n"), b"one\n", b"secret\n")
        for act in (
            lambda: apply_changes(JudgedChanges(object(), ChangeSet((change,)), {}), locks, str),
            lambda: apply_changes(SimpleNamespace(change_set=ChangeSet((change,)), made={}), locks, str),
            lambda: apply_changes(
                seal_index_files([IndexFile(change.path, b"secret\n", b"one\n")]), locks, str
            ),
        ):
            with pytest.raises((TypeError, ValueError)):
                act()


ERROR = st.sampled_from(ERRORS)
BODY = st.sampled_from(BODIES)
SIDE = st.none() | BODY
ANY_PATH = st.sampled_from([*OPEN, *OPEN, *PROTECTED])
NAMES = st.sampled_from([frozenset(), frozenset({"A.MD", "a.md", "Topic", "secret.md", "NEW"})])
USAGE = st.sampled_from([(0, 0), (-(10**12), -(10**12)), (10**12, 10**12), (0, 0)])
FACTS = st.builds(Facts, NAMES, USAGE, st.booleans())
WRONG_FACTS = st.builds(Facts, NAMES | ERROR, USAGE | ERROR, st.booleans() | ERROR)
GATES = st.builds(Gates, st.lists(st.just(None) | ERROR, min_size=1, max_size=3))
CHANGES = st.builds(
    lambda text, base, after, before: FileChange(parse_path(text), sha(base), after, before),
    st.sampled_from([*OPEN, *OPEN, *PROTECTED, *FORGED]),
    SIDE,
    SIDE,
    SIDE,
)
INTENTS = st.builds(
    Intent,
    st.integers(-1, 3),
    st.sampled_from([*TOKENS, *FALSE_TOKENS]),
    st.dictionaries(st.sampled_from([0, 0, 1, 2, 40000, 70000, -1]), CHANGES, max_size=3),
    st.lists(st.sampled_from([*MADE, *FORGED]).map(parse_path), max_size=2).map(tuple),
)
LYING_JOURNALS = st.builds(
    LyingJournal,
    st.lists(INTENTS, max_size=3),
    st.booleans() | st.just(True) | ERROR,
    st.sampled_from([0, 1, -5, None, "1"]),
    st.just({}) | st.dictionaries(st.sampled_from(["begin", "finish", "abandon", "unfinished"]), ERROR),
)
PARTS = st.tuples(ANY_PATH, st.sampled_from(["right", "right", "right", "absent", "wrong"]), SIDE)
VALID_PARTS = st.tuples(st.sampled_from(OPEN), st.sampled_from(["right"]), BODY | BODY | SIDE)
OTHER = st.sampled_from(
    [{"after": b"one\n"}, {"after": None}, {"base": None}, {"before": b"one\n"}]
    + [
        {"path": parse_path(text)}
        for text in ("user/b.md", "user/secret.md", "user/way/n.md", "project/p.md")
    ]
    + [None, 7, b"one\n", *ERRORS]
)
FOLLOWS = st.lists(st.sampled_from(["index", "forge", "again"]), max_size=2) | ERROR | st.just(7)


class MemoryMachine(RuleBasedStateMachine):
    """Two roots, with links to an outside tree."""

    @initialize()
    def begin(self):
        self.stack = ExitStack()
        self.base = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        write_files(self.base, STANDING)
        (self.base / "user/link.md").symlink_to("../outside/secret.md")
        (self.base / "user/way").symlink_to("../outside")
        (self.base / "user/hard.md").hardlink_to(self.base / "outside/hard.md")
        self.roots = bind_all({scope: self.base / scope for scope in SCOPES})
        for root in self.roots.values():
            self.stack.callback(root.close)
        self.first = self.read_protected()
        self.journal = HonestJournal(self.tree)

    def teardown(self):
        if hasattr(self, "stack"):
            self.stack.close()

    def read_protected(self):
        """Return the state of every name that must not change."""
        return {
            path: file_content
            for path, file_content in take_snapshot(self.base).items()
            if not self.may_change(path)
        }

    @staticmethod
    def may_change(path):
        folder, _, name = path.rpartition("/")
        is_of_commit = name.startswith((".muniment-", "memory-before-muniment")) and folder in FOLDERS
        return path in OPEN or path in DERIVED or path in FOLDERS or is_of_commit

    def tree(self):
        """Return names and bytes below the roots, without derived files; None is a directory."""
        found = {}
        for scope in SCOPES:
            for path in sorted((self.base / scope).rglob("*")):
                if not path.is_symlink():
                    found[str(path.relative_to(self.base))] = path.read_bytes() if path.is_file() else None
        return {path: file_content for path, file_content in found.items() if path not in DERIVED}

    def make_change(self, text, base, after):
        entry = self.base / text
        now = entry.read_bytes() if entry.is_file() else None
        bases = {"right": sha(now), "absent": None, "wrong": sha(b"never\n")}
        return FileChange(parse_path(text), bases[base], after)

    def make_parts(self, part_texts, claims=()):
        """Make one part for each list of changes."""
        each_once = [list({item[0]: item for item in part}.values()) for part in part_texts]
        claimed = tuple(Claim(make_path(text), sha(STANDING.get(text))) for text in claims)
        return [ChangeSet(tuple(self.make_change(*item) for item in part), claimed) for part in each_once]

    def commit(self, proposal, journal, gates, facts):
        """Return the judged change set, or None if the caller stops after recovery."""
        with transaction(
            proposal.parts,
            policy=POLICY,
            roots=self.roots,
            journal=journal,
            gates=gates,
            root_info=facts,
            deadline=make_patience(),
        ) as tx:
            with tx.recover() as recovered:
                if recovered:
                    proposal.after_recovery()
            parts = proposal.name_files()
            if parts is None:
                return None
            current, _ = tx.resolve(parts)
            judged = tx.judge(replace(current, changes=tuple(map(proposal.finalize, current.changes))))
            if proposal.approve(judged):
                with tx.write(judged) as writing:
                    writing.apply()
                    writing.finish(proposal.update_derived(tx.locked, writing.token))
            return judged

    def recover(self, journal, facts, follow=lambda: None, scopes=SCOPES):
        with lock_roots([self.roots[scope] for scope in scopes], make_patience()) as locks:
            with recover(locks, journal, POLICY, facts) as recovered:
                if recovered:
                    follow()
            return recovered

    @invariant()
    def protected_files_are_unchanged(self):
        if hasattr(self, "first"):
            assert self.read_protected() == self.first
            whole = {*BODIES, *STANDING.values(), b"index\n", b"planted\n"}
            assert {
                file_content for file_content in self.tree().values() if file_content is not None
            } <= whole


class LyingMachine(MemoryMachine):
    """A machine whose ports all lie."""

    @rule(
        part_texts=st.lists(st.lists(PARTS | VALID_PARTS, max_size=3), max_size=2),
        claims=st.just(()) | st.lists(ANY_PATH, max_size=2),
        replaced_parts=st.none() | st.lists(st.lists(PARTS, max_size=2), max_size=2),
        completed=st.just({}) | OTHER,
        hooks=st.just({})
        | st.fixed_dictionaries(
            {},
            optional={
                "parts": ERROR | st.just([]),
                "recovered": ERROR,
                "accepted": st.sampled_from([False, "yes", None, *ERRORS]),
                "followed": FOLLOWS,
            },
        ),
        journal=LYING_JOURNALS,
        gates=st.just(Gates([None])) | GATES,
        facts=FACTS | WRONG_FACTS,
    )
    def commit_with_lying_ports(
        self, part_texts, claims, replaced_parts, completed, hooks, journal, gates, facts
    ):
        hooks = {**hooks, "completed": completed}
        if replaced_parts is not None:
            hooks["placed"] = self.make_parts(replaced_parts)
        outcome = None
        with suppress(*RAISED):
            outcome = self.commit(
                HostileCaller(self.make_parts(part_texts, claims), hooks), journal, gates, facts
            )
        event(f"committed: {outcome is not None}")

    @rule(
        journal=LYING_JOURNALS,
        facts=FACTS | WRONG_FACTS,
        follow=st.none() | ERROR,
        scopes=st.sampled_from([SCOPES, ("user",)]),
    )
    def recover_with_lying_ports(self, journal, facts, follow, scopes):
        done, before = None, set(self.tree().values())
        with suppress(*RAISED):
            done = self.recover(journal, facts, lambda: return_or_raise(follow), scopes)
        assert journal.known is not False or set(self.tree().values()) <= before
        event(f"recovered: {bool(done)}")

    @rule(text=st.sampled_from([*OPEN, *PROTECTED]), after=SIDE)
    def propose_with_agreeing_ports(self, text, after):
        change, journal = self.make_change(text, "right", after), LyingJournal([], True, 1, {})
        with suppress(*RAISED):
            self.commit(HostileCaller([ChangeSet((change,))], {}), journal, Gates([None]), Facts())

    @rule(text=ANY_PATH, before=BODY | BODY | SIDE, known=st.booleans())
    def recover_an_invented_commit(self, text, before, known):
        """Recover as if the current file had come from a commit that replaced other bytes."""
        entry = self.base / text
        after = entry.read_bytes() if entry.is_file() else None
        forged_change = Intent(
            1, TOKENS[0], {0: FileChange(parse_path(text), sha(before), after, before)}, ()
        )
        self.recover_with_lying_ports(LyingJournal([forged_change], known, 1, {}), Facts(), None, SCOPES)

    @rule(
        folder=st.sampled_from([folder for folder in FOLDERS if "new" not in folder]),
        token=st.sampled_from(TOKENS),
        number=st.sampled_from([0, 0, 1, 2, 40000]),
        content=BODY | st.just(b"planted\n"),
    )
    def plant_a_temporary_name(self, folder, token, number, content):
        (self.base / folder).mkdir(exist_ok=True)
        (self.base / folder / f".muniment-{token}{number:04x}.tmp").write_bytes(content)


class HonestMachine(MemoryMachine):
    """A machine whose journal is honest, unless it is stopped."""

    @rule(
        part_texts=st.lists(st.lists(VALID_PARTS, min_size=1, max_size=3), min_size=1, max_size=2),
        completed=st.just({})
        | st.just({})
        | st.sampled_from([{"after": b"one\n"}, {"before": b"one\n"}, 7, *ERRORS]),
        hooks=st.just({})
        | st.fixed_dictionaries(
            {},
            optional={
                "recovered": ERROR,
                "accepted": st.sampled_from([True, True, False, *ERRORS]),
                "raced": st.just(True),
                "followed": st.sampled_from([["index"], ["forge"], ["index", "again"], 7, *ERRORS]),
            },
        ),
        stops=st.just({})
        | st.dictionaries(
            st.sampled_from(["begin", "finish", "abandon", "unfinished", "knows"]),
            st.sampled_from(["before", "behind", "killed"]),
            max_size=2,
        ),
        gates=st.just(Gates([None])) | st.just(Gates([None])) | st.just(Gates([None])) | GATES,
        facts=st.just(Facts()) | st.just(Facts()) | FACTS | WRONG_FACTS,
        disturbed=st.sampled_from([None, None, "abandon", "unfinished", "knows", "follow"]),
        order=st.sampled_from([["commit"], [SCOPES], [("user",), ("project",)], [("project",), ("user",)]]),
    )
    def commit(self, part_texts, completed, hooks, stops, gates, facts, disturbed, order):
        before, proposal = (
            self.tree(),
            HostileCaller(self.make_parts(part_texts), {**hooks, "completed": completed}),
        )
        journal, outcome = self.journal, None
        done, journal.stops, journal.frozen = set(journal.done), dict(stops), None
        if "raced" in hooks:
            proposal.peer = partial(self.edit, before)
        with suppress(*RAISED):
            outcome = super().commit(proposal, journal, gates, facts)
        if journal.frozen is not None:
            tree, journal.begun, journal.done = journal.frozen
            self.restore_tree(tree)
            outcome = None
        elif not stops and journal.done == done:
            assert self.tree() == before
        self.recover_all(disturbed, order)
        expected = before
        if journal.done != done:
            changes = proposal.judged.change_set.changes
            expected = self.apply_changes(before, {each.path.text: each.after for each in changes})
        assert self.tree() == expected
        assert not journal.begun
        if outcome is not None:
            assert (journal.done != done) == bool(proposal.is_accepted)
        assert "user/kept.md" in expected
        assert journal.done == done or not isinstance(hooks.get("followed"), BaseException)
        has_result, is_killed = outcome is not None, journal.frozen is not None
        event(f"committed: {journal.done != done}, returned: {has_result}, killed: {is_killed}")

    def recover_all(self, disturbed, order):
        """Recover once with an interruption and once without, one root at a time or all at once."""
        self.journal.stops = {} if disturbed in {None, "follow"} else {disturbed: "behind"}
        if disturbed is not None:
            with suppress(Stop):
                self.recover(
                    self.journal, Facts(), lambda: return_or_raise(Stop() if disturbed == "follow" else None)
                )
        self.journal.stops = {}
        for scopes in order:
            if scopes == "commit":
                parts = self.make_parts([[("user/a.md", "right", None), ("project/p.md", "right", None)]])
                super().commit(HostileCaller(parts, {"placed": None}), self.journal, Gates([None]), Facts())
            else:
                self.recover(self.journal, Facts(), scopes=scopes)

    def edit(self, before, path):
        """Write to a file just before the commit writes it."""
        if (self.base / path).parent.is_dir():
            (self.base / path).write_bytes(b"planted\n")
            before[path] = b"planted\n"

    def restore_tree(self, tree):
        """Restore the files of the moment of a kill."""
        for path in sorted(self.tree(), reverse=True):
            if path not in tree and not (self.base / path).is_dir():
                (self.base / path).unlink()
            elif path not in tree:
                shutil.rmtree(self.base / path)
        for path, file_content in tree.items():
            if file_content is None:
                (self.base / path).mkdir(exist_ok=True)
            elif not self.base.joinpath(path).exists() or (self.base / path).read_bytes() != file_content:
                (self.base / path).write_bytes(file_content)

    @staticmethod
    def apply_changes(before, changes):
        """Return the tree with all changes, including the new parent directories."""
        after = dict(before)
        for path, content in changes.items():
            if content is None:
                del after[path]
                continue
            folders = [str(each) for each in Path(path).parents if "/" in str(each)]
            after |= {**dict.fromkeys(folders), path: content}
        return after

    @invariant()
    def no_temporary_file_remains(self):
        if hasattr(self, "base"):
            assert not list(self.base.rglob(".muniment-*"))


TestLyingMachine = LyingMachine.TestCase
TestLyingMachine.settings = settings(stateful_step_count=20, deadline=None)
TestHonestMachine = HonestMachine.TestCase
TestHonestMachine.settings = settings(stateful_step_count=20, deadline=None)


@pytest.fixture
def machine():
    instance = LyingMachine()
    instance.begin()
    yield instance
    instance.teardown()


def test_recovery_keeps_no_file_in_a_denied_folder(machine):
    (machine.base / f"user/private/.muniment-{TOKENS[0]}0000.tmp").write_bytes(b"planted\n")
    forged_change = FileChange(make_path("user", "private/n.md"), None, b"one\n")
    machine.recover(LyingJournal([Intent(1, TOKENS[0], {0: forged_change}, ())], True, 1, {}), Facts())
    assert not (machine.base / "user/private/memory-before-muniment.md").exists()


def test_recovery_removes_no_denied_folder(machine):
    (machine.base / "user/private/empty").mkdir()
    machine.recover(
        LyingJournal([Intent(1, TOKENS[0], {}, (make_path("user", "private/empty"),))], True, 1, {}), Facts()
    )
    assert (machine.base / "user/private/empty").exists()


def test_index_of_a_hook_cannot_use_a_denied_name(machine):
    (machine.base / "user/secret.md").unlink()

    def update_derived(locks, token):
        index = make_path("user", "MEMORY.md")
        for file in (
            IndexFile(index, Precondition.ABSENT, b"one\n"),
            IndexFile(index, b"one\n", b"index\n", saved_as="secret.md"),
        ):
            apply_changes(seal_index_files([file]), locks, partial(get_index_temporary_name, token))
        return ()

    proposal = HostileCaller(machine.make_parts([[("user/a.md", "right", b"two two\n")]]), {})
    proposal.update_derived = update_derived
    with suppress(MunimentError, ValueError):
        machine.commit(proposal, machine.journal, Gates([None]), Facts())
    assert not (machine.base / "user/secret.md").exists()


def test_conflict_restores_a_removed_file(machine):
    before = (machine.base / "user/a.md").read_bytes()
    proposal = HostileCaller(
        machine.make_parts([[("user/a.md", "right", None), ("user/b.md", "right", b"one\n")]]), {}
    )
    proposal.approve = lambda _: bool((machine.base / "user/b.md").write_bytes(b"planted\n"))
    with pytest.raises(StoreConflict):
        machine.commit(proposal, machine.journal, Gates([None]), Facts())
    machine.recover(machine.journal, Facts())
    assert (machine.base / "user/b.md").read_bytes() == b"planted\n"
    assert (machine.base / "user/a.md").exists()
    assert (machine.base / "user/a.md").read_bytes() == before
