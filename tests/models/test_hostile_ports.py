"""Whatever the ports of the kernel say: what it may not touch stays, and a commit is all there or not at all.

Gates, facts, a journal and a caller that lie, lose, repeat and raise, over real directories. What may
change is a literal set of names; the oracle shares no code with the kernel.
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
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.paths import at, forged
from kit.store.ground import lay, photograph
from muniment.kernel.binding import bind_all
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, Claim, FileChange, IndexFile, Judged, Standing
from muniment.kernel.commit import transaction
from muniment.kernel.land import generated, land, lock_roots
from muniment.kernel.refusal import MunimentError, Refused, StoreConflict
from muniment.kernel.write import Intent, recover, temporary_of_index
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
SHUT = ["user/secret.md", "user/SECRET.md", "user/topic/Secret.md", "user/private/p.md", "user/private/n.md"]
SHUT += ["user/PRIVATE/n.md", "user/private/deep/n.md", "project/private/deep/p.md", "project/secret.md"]
SHUT += ["user/link.md", "user/hard.md", "user/way/secret.md", "user/way/n.md", "user/way/empty/.keep"]
SHUT += ["user", "project", "other/a.md", "outside/secret.md"]
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


def forever():
    return Patience(time.monotonic() + 60)


def path_of(text):
    scope, _, rel = text.partition("/")
    return forged(scope, rel) if text in FORGED else at(scope, rel)


def said(item):
    """What a port says: an error is raised, anything else returned."""
    if isinstance(item, BaseException):
        raise item
    return item


class Facts:
    """Says what it was told to, however wrong."""

    def __init__(self, *kept):
        self.kept = kept or (frozenset(), (0, 0), False)

    def alike(self, _directory, _name):
        return said(self.kept[0])

    def usage(self, _scope, _counts):
        return said(self.kept[1])

    def is_index(self, _scope, _content):
        return said(self.kept[2])


class Gates:
    """Answers in turn."""

    def __init__(self, answers):
        self.answers = answers

    def __call__(self, _change):
        self.answers = [*self.answers[1:], self.answers[0]]
        return said(self.answers[0])


class Liar:
    """A journal that keeps nothing and says what it was told to."""

    def __init__(self, intents, knows, number, errors):
        self.intents, self.known, self.number, self.errors = intents, knows, number, errors

    def begin(self, _judged, _token):
        said(self.errors.get("begin"))
        return self.number

    def finish(self, _number, _judged, _notes):
        said(self.errors.get("finish"))

    def abandon(self, _number, _scopes, _recovered=None):
        said(self.errors.get("abandon"))

    def unfinished(self, _scopes):
        said(self.errors.get("unfinished"))
        return self.intents

    def knows(self, _path, _of):
        return said(self.known)


class Keeper:
    """An honest journal, which may stop before or behind one call, or be killed there with all around it."""

    def __init__(self, tree):
        self.tree, self.begun, self.done, self.known = tree, {}, set(), set()
        self.stops, self.frozen, self.last = {}, None, 0

    def step(self, call, act):
        """Do it, and stop where that was asked: once."""
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
        made = tuple({each: None for group in judged.made for each in group})
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

    def unfinished(self, scopes):
        def act():
            intents = [Intent(number, *kept) for number, kept in sorted(self.begun.items(), reverse=True)]
            return [it for it in intents if any(each.path.scope in scopes for each in it.changes.values())]

        return self.step("unfinished", act)

    def knows(self, path, of):
        return self.step("knows", lambda: (path.text, of) in self.known)


class Hostile:
    """A caller of a transaction; each of its steps does what it was told to."""

    def __init__(self, parts, hooks):
        self.given, self.hooks, self.judged, self.is_accepted, self.peer = parts, hooks, None, None, None
        self.followers = {
            "index": self.write_index,
            "forge": self.forge,
            "again": lambda held, _: land(self.judged, held, lambda at: f".muniment-{at:016x}.tmp"),
        }

    @property
    def parts(self):
        return said(self.hooks.get("parts", self.given))

    def recovered(self):
        said(self.hooks.get("recovered"))

    def placed(self):
        return said(self.hooks.get("placed", self.given))

    def completed(self, change):
        other = said(self.hooks.get("completed", {}))
        return replace(change, **other) if isinstance(other, dict) else other

    def accepted(self, judged):
        self.judged, self.is_accepted = judged, said(self.hooks.get("accepted", True))
        if self.peer is not None:
            self.peer(judged.change_set.paths[-1].text)
        return self.is_accepted

    def followed(self, held, token):
        how = self.hooks.get("followed", ())
        for each in how if isinstance(how, list) else ():
            self.followers[each](held, token)
        return ("note",) if isinstance(how, list) else said(how)

    def write_index(self, held, token):
        for scope in held:
            stands = held[scope].trusted_path / "MEMORY.md"
            before = stands.read_bytes() if stands.exists() else Standing.ABSENT
            land(
                generated([IndexFile(at(scope, "MEMORY.md"), before, b"index\n")]),
                held,
                partial(temporary_of_index, token),
            )

    def forge(self, held, _token):
        """Try to land what nobody judged: each way has to be refused."""
        change = FileChange(at("user", "secret.md"), sha(b"secret\n"), b"one\n", b"secret\n")
        for act in (
            lambda: land(Judged(object(), ChangeSet((change,)), {}), held, str),
            lambda: land(SimpleNamespace(change_set=ChangeSet((change,)), made={}), held, str),
            lambda: land(generated([IndexFile(change.path, b"secret\n", b"one\n")]), held, str),
        ):
            with pytest.raises((TypeError, ValueError)):
                act()


ERROR = some.sampled_from(ERRORS)
BODY = some.sampled_from(BODIES)
SIDE = some.none() | BODY
ANY_PATH = some.sampled_from([*OPEN, *OPEN, *SHUT])
NAMES = some.sampled_from([frozenset(), frozenset({"A.MD", "a.md", "Topic", "secret.md", "NEW"})])
USAGE = some.sampled_from([(0, 0), (-(10**12), -(10**12)), (10**12, 10**12), (0, 0)])
FACTS = some.builds(Facts, NAMES, USAGE, some.booleans())
WRONG_FACTS = some.builds(Facts, NAMES | ERROR, USAGE | ERROR, some.booleans() | ERROR)
GATES = some.builds(Gates, some.lists(some.just(None) | ERROR, min_size=1, max_size=3))
CHANGES = some.builds(
    lambda text, base, after, before: FileChange(path_of(text), sha(base), after, before),
    some.sampled_from([*OPEN, *OPEN, *SHUT, *FORGED]),
    SIDE,
    SIDE,
    SIDE,
)
INTENTS = some.builds(
    Intent,
    some.integers(-1, 3),
    some.sampled_from([*TOKENS, *FALSE_TOKENS]),
    some.dictionaries(some.sampled_from([0, 0, 1, 2, 40000, 70000, -1]), CHANGES, max_size=3),
    some.lists(some.sampled_from([*MADE, *FORGED]).map(path_of), max_size=2).map(tuple),
)
LIARS = some.builds(
    Liar,
    some.lists(INTENTS, max_size=3),
    some.booleans() | some.just(True) | ERROR,
    some.sampled_from([0, 1, -5, None, "1"]),
    some.just({}) | some.dictionaries(some.sampled_from(["begin", "finish", "abandon", "unfinished"]), ERROR),
)
WORDS = some.tuples(ANY_PATH, some.sampled_from(["right", "right", "right", "absent", "wrong"]), SIDE)
GOOD = some.tuples(some.sampled_from(OPEN), some.sampled_from(["right"]), BODY | BODY | SIDE)
OTHER = some.sampled_from(
    [{"after": b"one\n"}, {"after": None}, {"base": None}, {"before": b"one\n"}]
    + [{"path": path_of(text)} for text in ("user/b.md", "user/secret.md", "user/way/n.md", "project/p.md")]
    + [None, 7, b"one\n", *ERRORS]
)
FOLLOWS = some.lists(some.sampled_from(["index", "forge", "again"]), max_size=2) | ERROR | some.just(7)


class Place(RuleBasedStateMachine):
    """Two roots, and an outside tree that links lead to."""

    @initialize()
    def begin(self):
        self.stack = ExitStack()
        self.base = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        lay(self.base, STANDING)
        (self.base / "user/link.md").symlink_to("../outside/secret.md")
        (self.base / "user/way").symlink_to("../outside")
        (self.base / "user/hard.md").hardlink_to(self.base / "outside/hard.md")
        self.roots = bind_all({scope: self.base / scope for scope in SCOPES})
        for root in self.roots.values():
            self.stack.callback(root.close)
        self.first = self.shut()
        self.keeper = Keeper(self.tree)

    def teardown(self):
        if hasattr(self, "stack"):
            self.stack.close()

    def shut(self):
        """Everything about every name that nobody may touch."""
        return {path: kept for path, kept in photograph(self.base).items() if not self.may_change(path)}

    @staticmethod
    def may_change(path):
        folder, _, name = path.rpartition("/")
        is_of_commit = name.startswith((".muniment-", "memory-before-muniment")) and folder in FOLDERS
        return path in OPEN or path in DERIVED or path in FOLDERS or is_of_commit

    def tree(self):
        """Names and bytes below the roots, but for what is derived; None is a directory."""
        found = {}
        for scope in SCOPES:
            for path in sorted((self.base / scope).rglob("*")):
                if not path.is_symlink():
                    found[str(path.relative_to(self.base))] = path.read_bytes() if path.is_file() else None
        return {path: kept for path, kept in found.items() if path not in DERIVED}

    def change_of(self, text, base, after):
        stands = self.base / text
        now = stands.read_bytes() if stands.is_file() else None
        bases = {"right": sha(now), "absent": None, "wrong": sha(b"never\n")}
        return FileChange(path_of(text), bases[base], after)

    def parts_of(self, words, claims=()):
        """One part for each list of words."""
        each_once = [list({item[0]: item for item in part}.values()) for part in words]
        claimed = tuple(Claim(path_of(text), sha(STANDING.get(text))) for text in claims)
        return [ChangeSet(tuple(self.change_of(*item) for item in part), claimed) for part in each_once]

    def commit(self, proposal, journal, gates, facts):
        """Return what was judged, or None if the caller stops after recovery."""
        with transaction(
            proposal.parts,
            policy=POLICY,
            roots=self.roots,
            journal=journal,
            gates=gates,
            facts=facts,
            patience=forever(),
        ) as tx:
            with tx.recover() as recovered:
                if recovered:
                    proposal.recovered()
            parts = proposal.placed()
            if parts is None:
                return None
            current, _ = tx.resolve(parts)
            judged = tx.judge(replace(current, changes=tuple(map(proposal.completed, current.changes))))
            if proposal.accepted(judged):
                with tx.write(judged) as writing:
                    writing.land()
                    writing.finish(proposal.followed(tx.locked, writing.token))
            return judged

    def recover(self, journal, facts, follow=lambda: None, scopes=SCOPES):
        with lock_roots([self.roots[scope] for scope in scopes], forever()) as held:
            with recover(held, journal, POLICY, facts) as recovered:
                if recovered:
                    follow()
            return recovered

    @invariant()
    def what_nobody_may_touch_is_as_it_stood(self):
        if hasattr(self, "first"):
            assert self.shut() == self.first
            whole = {*BODIES, *STANDING.values(), b"index\n", b"planted\n"}
            assert {kept for kept in self.tree().values() if kept is not None} <= whole


class Lies(Place):
    """Nobody says the truth."""

    @rule(
        words=some.lists(some.lists(WORDS | GOOD, max_size=3), max_size=2),
        claims=some.just(()) | some.lists(ANY_PATH, max_size=2),
        again=some.none() | some.lists(some.lists(WORDS, max_size=2), max_size=2),
        completed=some.just({}) | OTHER,
        hooks=some.just({})
        | some.fixed_dictionaries(
            {},
            optional={
                "parts": ERROR | some.just([]),
                "recovered": ERROR,
                "accepted": some.sampled_from([False, "yes", None, *ERRORS]),
                "followed": FOLLOWS,
            },
        ),
        journal=LIARS,
        gates=some.just(Gates([None])) | GATES,
        facts=FACTS | WRONG_FACTS,
    )
    def commit_with_liars(self, words, claims, again, completed, hooks, journal, gates, facts):
        hooks = {**hooks, "completed": completed}
        if again is not None:
            hooks["placed"] = self.parts_of(again)
        outcome = None
        with suppress(*RAISED):
            outcome = self.commit(Hostile(self.parts_of(words, claims), hooks), journal, gates, facts)
        event(f"landed: {outcome is not None}")

    @rule(
        journal=LIARS,
        facts=FACTS | WRONG_FACTS,
        follow=some.none() | ERROR,
        scopes=some.sampled_from([SCOPES, ("user",)]),
    )
    def recover_with_liars(self, journal, facts, follow, scopes):
        done, before = None, set(self.tree().values())
        with suppress(*RAISED):
            done = self.recover(journal, facts, lambda: said(follow), scopes)
        assert journal.known is not False or set(self.tree().values()) <= before
        event(f"recovered: {bool(done)}")

    @rule(text=some.sampled_from([*OPEN, *SHUT]), after=SIDE)
    def propose_where_all_say_yes(self, text, after):
        change, journal = self.change_of(text, "right", after), Liar([], True, 1, {})
        with suppress(*RAISED):
            self.commit(Hostile([ChangeSet((change,))], {}), journal, Gates([None]), Facts())

    @rule(text=ANY_PATH, before=BODY | BODY | SIDE, known=some.booleans())
    def take_back_what_never_was(self, text, before, known):
        """As if what stands there had come with a commit, and other bytes had stood there."""
        stands = self.base / text
        after = stands.read_bytes() if stands.is_file() else None
        lie = Intent(1, TOKENS[0], {0: FileChange(path_of(text), sha(before), after, before)}, ())
        self.recover_with_liars(Liar([lie], known, 1, {}), Facts(), None, SCOPES)

    @rule(
        folder=some.sampled_from([folder for folder in FOLDERS if "new" not in folder]),
        token=some.sampled_from(TOKENS),
        number=some.sampled_from([0, 0, 1, 2, 40000]),
        content=BODY | some.just(b"planted\n"),
    )
    def plant_a_temporary_name(self, folder, token, number, content):
        (self.base / folder).mkdir(exist_ok=True)
        (self.base / folder / f".muniment-{token}{number:04x}.tmp").write_bytes(content)


class Truth(Place):
    """The journal alone says the truth, if it is let."""

    @rule(
        words=some.lists(some.lists(GOOD, min_size=1, max_size=3), min_size=1, max_size=2),
        completed=some.just({})
        | some.just({})
        | some.sampled_from([{"after": b"one\n"}, {"before": b"one\n"}, 7, *ERRORS]),
        hooks=some.just({})
        | some.fixed_dictionaries(
            {},
            optional={
                "recovered": ERROR,
                "accepted": some.sampled_from([True, True, False, *ERRORS]),
                "raced": some.just(True),
                "followed": some.sampled_from([["index"], ["forge"], ["index", "again"], 7, *ERRORS]),
            },
        ),
        stops=some.just({})
        | some.dictionaries(
            some.sampled_from(["begin", "finish", "abandon", "unfinished", "knows"]),
            some.sampled_from(["before", "behind", "killed"]),
            max_size=2,
        ),
        gates=some.just(Gates([None])) | some.just(Gates([None])) | some.just(Gates([None])) | GATES,
        facts=some.just(Facts()) | some.just(Facts()) | FACTS | WRONG_FACTS,
        disturbed=some.sampled_from([None, None, "abandon", "unfinished", "knows", "follow"]),
        order=some.sampled_from([["commit"], [SCOPES], [("user",), ("project",)], [("project",), ("user",)]]),
    )
    def commit(self, words, completed, hooks, stops, gates, facts, disturbed, order):
        before, proposal = self.tree(), Hostile(self.parts_of(words), {**hooks, "completed": completed})
        journal, outcome = self.keeper, None
        done, journal.stops, journal.frozen = set(journal.done), dict(stops), None
        if "raced" in hooks:
            proposal.peer = partial(self.edit, before)
        with suppress(*RAISED):
            outcome = super().commit(proposal, journal, gates, facts)
        if journal.frozen is not None:
            tree, journal.begun, journal.done = journal.frozen
            self.lay_again(tree)
            outcome = None
        elif not stops and journal.done == done:
            assert self.tree() == before
        self.recover_all(disturbed, order)
        expected = before
        if journal.done != done:
            changes = proposal.judged.change_set.changes
            expected = self.changed(before, {each.path.text: each.after for each in changes})
        assert self.tree() == expected
        assert not journal.begun
        if outcome is not None:
            assert (journal.done != done) == bool(proposal.is_accepted)
        assert "user/kept.md" in expected
        assert journal.done == done or not isinstance(hooks.get("followed"), BaseException)
        is_told, is_killed = outcome is not None, journal.frozen is not None
        event(f"committed: {journal.done != done}, told: {is_told}, killed: {is_killed}")

    def recover_all(self, disturbed, order):
        """Once while somebody stops it, and once in peace, a root at a time or all at once."""
        self.keeper.stops = {} if disturbed in {None, "follow"} else {disturbed: "behind"}
        if disturbed is not None:
            with suppress(Stop):
                self.recover(self.keeper, Facts(), lambda: said(Stop() if disturbed == "follow" else None))
        self.keeper.stops = {}
        for scopes in order:
            if scopes == "commit":
                parts = self.parts_of([[("user/a.md", "right", None), ("project/p.md", "right", None)]])
                super().commit(Hostile(parts, {"placed": None}), self.keeper, Gates([None]), Facts())
            else:
                self.recover(self.keeper, Facts(), scopes=scopes)

    def edit(self, before, path):
        """Somebody writes to a file just before it is written."""
        if (self.base / path).parent.is_dir():
            (self.base / path).write_bytes(b"planted\n")
            before[path] = b"planted\n"

    def lay_again(self, tree):
        """The disk as a kill left it."""
        for path in sorted(self.tree(), reverse=True):
            if path not in tree and not (self.base / path).is_dir():
                (self.base / path).unlink()
            elif path not in tree:
                shutil.rmtree(self.base / path)
        for path, kept in tree.items():
            if kept is None:
                (self.base / path).mkdir(exist_ok=True)
            elif not self.base.joinpath(path).exists() or (self.base / path).read_bytes() != kept:
                (self.base / path).write_bytes(kept)

    @staticmethod
    def changed(before, changes):
        """What stands once all of the changes are there, with the directories above what is new."""
        after = dict(before)
        for path, content in changes.items():
            if content is None:
                del after[path]
                continue
            folders = [str(each) for each in Path(path).parents if "/" in str(each)]
            after |= {**dict.fromkeys(folders), path: content}
        return after

    @invariant()
    def no_temporary_name_stays(self):
        if hasattr(self, "base"):
            assert not list(self.base.rglob(".muniment-*"))


TestLies = Lies.TestCase
TestLies.settings = settings(stateful_step_count=20, deadline=None)
TestTruth = Truth.TestCase
TestTruth.settings = settings(stateful_step_count=20, deadline=None)


@pytest.fixture
def place():
    made = Lies()
    made.begin()
    yield made
    made.teardown()


def test_a_lying_journal_gives_nothing_a_name_in_a_denied_folder(place):
    (place.base / f"user/private/.muniment-{TOKENS[0]}0000.tmp").write_bytes(b"planted\n")
    lie = FileChange(at("user", "private/n.md"), None, b"one\n")
    place.recover(Liar([Intent(1, TOKENS[0], {0: lie}, ())], True, 1, {}), Facts())
    assert not (place.base / "user/private/memory-before-muniment.md").exists()


def test_a_lying_journal_removes_no_denied_folder(place):
    (place.base / "user/private/empty").mkdir()
    place.recover(Liar([Intent(1, TOKENS[0], {}, (at("user", "private/empty"),))], True, 1, {}), Facts())
    assert (place.base / "user/private/empty").exists()


def test_a_hook_gives_no_bytes_a_denied_name_through_an_index(place):
    (place.base / "user/secret.md").unlink()

    def followed(held, token):
        index = at("user", "MEMORY.md")
        for file in (
            IndexFile(index, Standing.ABSENT, b"one\n"),
            IndexFile(index, b"one\n", b"index\n", kept="secret.md"),
        ):
            land(generated([file]), held, partial(temporary_of_index, token))
        return ()

    proposal = Hostile(place.parts_of([[("user/a.md", "right", b"two two\n")]]), {})
    proposal.followed = followed
    with suppress(MunimentError, ValueError):
        place.commit(proposal, place.keeper, Gates([None]), Facts())
    assert not (place.base / "user/secret.md").exists()


def test_a_removed_file_is_back_when_somebody_else_comes_first_at_another_path(place):
    before = (place.base / "user/a.md").read_bytes()
    proposal = Hostile(place.parts_of([[("user/a.md", "right", None), ("user/b.md", "right", b"one\n")]]), {})
    proposal.accepted = lambda _: bool((place.base / "user/b.md").write_bytes(b"planted\n"))
    with pytest.raises(StoreConflict):
        place.commit(proposal, place.keeper, Gates([None]), Facts())
    place.recover(place.keeper, Facts())
    assert (place.base / "user/b.md").read_bytes() == b"planted\n"
    assert (place.base / "user/a.md").exists()
    assert (place.base / "user/a.md").read_bytes() == before
