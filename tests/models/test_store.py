"""Whatever order things are done in: the memory is what a plain dictionary says it must be.

Remember, forget, dream, undo, edits by hand and crashes, one after the other, over a real directory. The
model is a dictionary of paths and bytes, and for each task what it changed.
It shares no code with the subject.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.jobs.places import opened
from kit.memories import make_roots, strict
from muniment.agent.filing import RuleWriter
from muniment.confine.cancel import Patience
from muniment.jobs.dream import dream
from muniment.jobs.forget import forget
from muniment.jobs.remember import remember
from muniment.jobs.request import DreamRequest, ForgetRequest, RememberRequest
from muniment.jobs.review import undo
from muniment.store import audit, upkeep
from muniment.store import commit as commits
from muniment.testing.corpus.index_oracle import index_problems

WORDS = ["alder", "birch", "cedar", "dogwood", "elm", "fir", "gum", "hazel"]
SCOPES = ("user", "project")


class Killed(BaseException):
    """Stands for a kill in the middle of a commit."""


def body_of(data):
    """The text below the front matter, by the definition of a file of entries."""
    text = data.decode()
    if not text.startswith("---\n"):
        return text.strip()
    return text.split("\n---\n", 1)[1].strip()


class Memory(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.stack = ExitStack()
        self.base = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.roots = make_roots(self.base)
        policy = strict(require="none")
        changes = policy.changes.model_copy(update={"max_scope_share": 1.0, "max_forget": 3})
        self.policy = policy.model_copy(update={"changes": changes})
        self.place = self.stack.enter_context(opened(self.roots, self.policy))
        self.model = {}
        self.done = []
        self.behind = dict.fromkeys(SCOPES, "")  # why an index may differ from its entries

    def teardown(self):
        if hasattr(self, "stack"):
            self.stack.close()

    def tree(self):
        found = {}
        for scope in SCOPES:
            root = self.base / scope
            for path in root.rglob("*.md"):
                rel = path.relative_to(root)
                if rel.name != "MEMORY.md" and rel.parts[0] != "index":
                    found[f"{scope}/{rel}"] = path.read_bytes()
        return found

    def moved(self, task):
        """What a task changed, by the disk; the model follows once it has been judged."""
        after = self.tree()
        changed = {
            path: (self.model.get(path), after.get(path))
            for path in self.model.keys() | after.keys()
            if self.model.get(path) != after.get(path)
        }
        self.model = after
        if changed:
            self.done.append((task, changed))
        for scope in {path.partition("/")[0] for path in changed}:
            if self.behind[scope] != "an edit in place":
                self.behind[scope] = ""
        return changed

    @rule(
        words=some.lists(some.sampled_from(WORDS), min_size=1, max_size=3, unique=True),
        scope=some.sampled_from(SCOPES),
    )
    def remember(self, words, scope):
        fact = f"The user likes {' and '.join(words)}"
        known = any(body_of(data) == fact for path, data in self.model.items() if path.startswith(scope))
        result = remember(RememberRequest(fact, scope=scope), self.place, RuleWriter())
        assert result.error is None
        changed = self.moved(result.task_id)
        assert set(changed) == set(result.files_touched)
        assert result.unchanged == known
        if known:
            assert not changed
            return
        ((path, (before, after)),) = changed.items()
        assert before is None
        assert path.startswith(f"{scope}/")
        assert body_of(after) == fact

    @precondition(lambda self: self.model)
    @rule(
        which=some.integers(0),
        word=some.sampled_from(WORDS),
        how=some.sampled_from(["append", "new", "remove", "bullets"]),
    )
    def edit_by_hand(self, which, word, how):
        path = sorted(self.model)[which % len(self.model)]
        match how:
            case "append":
                self.model[path] += f"More about {word}.\n".encode()
            case "new":
                path = f"project/hand-{word}.md"
                self.model[path] = f"# {word}\nBy hand: {word}.\n".encode()
            case "bullets":
                path = f"user/list-{word}.md"
                self.model[path] = f"# List\n\n- about {word}\n- about stones\n".encode()
            case "remove":
                del self.model[path]
        scope = path.partition("/")[0]
        is_in_place = (self.base / path).exists() and path in self.model
        self.behind[scope] = "an edit in place" if is_in_place else self.behind[scope] or "a name"
        if path in self.model:
            (self.base / path).parent.mkdir(exist_ok=True)
            (self.base / path).write_bytes(self.model[path])
        else:
            (self.base / path).unlink()

    @rule(scope=some.sampled_from(SCOPES))
    def rebuild(self, scope):
        upkeep.rebuild(self.place.state, self.place.roots[scope], self.policy, Patience(float("inf")))
        self.behind[scope] = ""

    @rule(word=some.sampled_from([*WORDS, "a", "the", "oak"]))
    def forget(self, word):
        holding = {path for path, data in self.model.items() if word.encode() in data.lower()}
        result = forget(ForgetRequest(word, yes=True), self.place, RuleWriter())
        before = dict(self.model)
        changed = self.moved(result.task_id)
        if word in {"a", "the", "oak"} or len(holding) > 3:
            assert not changed
            return
        assert result.error is None
        assert set(changed) <= holding
        for path, (was, now) in changed.items():
            assert was == before[path]
            kept = b"" if now is None else now
            # What stays of a file is some of its own lines, in their order, without the word in an item.
            rest = iter(was.splitlines(keepends=True))
            assert all(line in rest for line in kept.splitlines(keepends=True))
        assert {path for path in holding if word.encode() in body_of(before[path]).lower().encode()} <= {
            *changed,
            *(each.path for each in result.kept),
        }

    @rule()
    def dream(self):
        before = dict(self.model)
        result = dream(DreamRequest(yes=True), self.place, RuleWriter())
        assert result.error is None
        changed = self.moved(result.task_id)
        assert set(changed) == {*result.deduped_entries, *result.expired_entries}
        assert all(after is None for _, after in changed.values())
        for scope in SCOPES:
            said_before = {body_of(data) for path, data in before.items() if path.startswith(scope)}
            said_now = [body_of(data) for path, data in self.model.items() if path.startswith(scope)]
            assert set(said_now) == said_before
            assert len(said_now) == len(set(said_now))

    @precondition(lambda self: self.done)
    @rule(which=some.integers(0))
    def undo(self, which):
        task, changes = self.done[which % len(self.done)]
        as_left = all(self.model.get(path) == after for path, (_, after) in changes.items())
        result = undo(task, self.place)
        changed = self.moved(result.task_id)
        if result.error is None:
            assert as_left
            assert changed == {path: (after, before) for path, (before, after) in changes.items()}
        else:
            assert not changed
            assert result.error.code == ("already_undone" if as_left else result.error.code)
        if not as_left:
            assert result.error is not None
            assert result.error.code in {"undo_overlap", "already_undone"}

    @rule(word=some.sampled_from(WORDS))
    def crash(self, word):
        """A remember that is killed once its file is written, and a new start."""

        def die(*_args):
            raise Killed

        real = commits.finish, commits.bring_back
        commits.finish, commits.bring_back = die, lambda *_: []
        try:
            remember(RememberRequest(f"Killed while filing {word}", scope="user"), self.place, RuleWriter())
        except Killed:
            pass
        finally:
            commits.finish, commits.bring_back = real
        upkeep.recover_all(self.place.state, self.place.roots, self.policy, Patience(float("inf")))
        self.behind["user"] = ""
        assert self.tree() == self.model

    @invariant()
    def the_files_are_those_of_the_model(self):
        if hasattr(self, "place"):
            assert self.tree() == self.model
            assert not list(self.base.rglob(".*.tmp"))

    @invariant()
    def the_indexes_and_the_chain_are_whole(self):
        if not hasattr(self, "place"):
            return
        assert audit.verify(self.place.state).problems == ()
        for scope in SCOPES:
            if self.behind[scope]:
                continue
            index = self.base / scope / "MEMORY.md"
            entries = {path.partition("/")[2] for path in self.model if path.startswith(f"{scope}/")}
            if index.exists():
                assert list(index_problems(index.read_bytes(), entries)) == []
                before = index.read_bytes()
                upkeep.rebuild(self.place.state, self.place.roots[scope], self.policy, Patience(float("inf")))
                assert index.read_bytes() == before
            else:
                assert not entries


TestMemory = Memory.TestCase
TestMemory.settings = settings(stateful_step_count=15, deadline=None)
