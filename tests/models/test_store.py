"""Whatever order things are done in: the memory is what a plain dictionary says it must be.

Remember, forget, dream, undo, edits by hand and crashes, one after the other, over a real directory. The
model is a dictionary of paths and bytes, and for each task what it changed.
It shares no code with the subject.
"""

import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.memories import make_roots, strict
from kit.operations.places import opened
from kit.store.killed import dying, files
from muniment.agent.filing import RuleWriter
from muniment.kernel.cancel import Patience
from muniment.operations.dream import dream
from muniment.operations.forget import forget
from muniment.operations.remember import remember
from muniment.operations.review import undo
from muniment.store import audit, upkeep
from muniment.testing.corpus.index_oracle import index_problems
from muniment.types import DreamRequest, ForgetRequest, RememberRequest

WORDS = ["alder", "birch", "cedar", "dogwood", "elm", "fir", "gum", "hazel"]
UNKNOWN = {"a", "the", "oak"}
SCOPES = ("user", "project")
HOWS = ("append", "new", "remove", "bullets")
FOREVER = Patience(float("inf"))


class Killed(BaseException):
    """Stands for a kill in the middle of a commit."""


def body_of(data):
    """The text below the front matter, by the definition of a file of entries."""
    text = data.decode()
    return (text.split("\n---\n", 1)[1] if text.startswith("---\n") else text).strip()


class Memory(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.stack = ExitStack()
        self.base = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        policy = strict(require="none")
        changes = replace(policy.changes, max_scope_share=1.0, max_forget=3)
        self.policy = replace(policy, changes=changes)
        self.place = self.stack.enter_context(opened(make_roots(self.base), self.policy))
        self.model, self.done = {}, []
        self.behind = dict.fromkeys(SCOPES, "")  # why an index may differ from its entries

    def teardown(self):
        if hasattr(self, "stack"):
            self.stack.close()

    def tree(self):
        found = ((scope, *item) for scope in SCOPES for item in files(self.base / scope).items())
        return {f"{scope}/{rel}": data for scope, rel, data in found if rel.endswith(".md")}

    def moved(self, task):
        """What a task changed, by the disk; the model follows once it has been judged."""
        before, after = self.model, self.tree()
        pairs = {path: (before.get(path), after.get(path)) for path in {*before, *after}}
        changed = {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}
        self.model = after
        if changed:
            self.done.append((task, changed))
        for scope in {path.partition("/")[0] for path in changed}:
            if self.behind[scope] != "an edit in place":
                self.behind[scope] = ""
        return changed

    @rule(words=some.sets(some.sampled_from(WORDS), min_size=1, max_size=3), scope=some.sampled_from(SCOPES))
    def remember(self, words, scope):
        fact = f"The user likes {' and '.join(sorted(words))}"
        known = any(body_of(data) == fact for path, data in self.model.items() if path.startswith(scope))
        result = remember(RememberRequest(fact, scope=scope), self.place, RuleWriter())
        assert result.error is None
        changed = self.moved(result.task_id)
        assert set(changed) == set(result.files_touched)
        assert result.unchanged == known
        assert len(changed) == (not known)
        for path, (before, after) in changed.items():
            assert before is None
            assert path.startswith(f"{scope}/")
            assert body_of(after) == fact

    @precondition(lambda self: self.model)
    @rule(which=some.integers(0), word=some.sampled_from(WORDS), how=some.sampled_from(HOWS))
    def edit_by_hand(self, which, word, how):
        path = sorted(self.model)[which % len(self.model)]
        path = {"new": f"project/hand-{word}.md", "bullets": f"user/list-{word}.md"}.get(how, path)
        scope, at = path.partition("/")[0], self.base / path
        is_in_place = at.exists() and how != "remove"
        self.behind[scope] = "an edit in place" if is_in_place else self.behind[scope] or "a name"
        if how == "remove":
            del self.model[path]
            at.unlink()
            return
        texts = {
            "append": self.model.get(path, b"") + f"More about {word}.\n".encode(),
            "new": f"# {word}\nBy hand: {word}.\n".encode(),
            "bullets": f"# List\n\n- about {word}\n- about stones\n".encode(),
        }
        self.model[path] = texts[how]
        at.parent.mkdir(exist_ok=True)
        at.write_bytes(texts[how])

    @rule(scope=some.sampled_from(SCOPES))
    def rebuild(self, scope):
        upkeep.rebuild(self.place.state, self.place.roots[scope], self.policy, FOREVER)
        self.behind[scope] = ""

    @rule(word=some.sampled_from([*WORDS, *sorted(UNKNOWN)]))
    def forget(self, word):
        before, data = dict(self.model), word.encode()
        holding = {path for path in before if data in before[path].lower()}
        result = forget(ForgetRequest(word), self.place, RuleWriter())
        changed = self.moved(result.task_id)
        if word in UNKNOWN or len(holding) > 3:
            assert not changed
            return
        assert result.error is None
        assert set(changed) <= holding
        for path, (was, now) in changed.items():
            assert was == before[path]
            # What stays of a file is some of its own lines, in their order, without the word in an item.
            rest = iter(was.splitlines(keepends=True))
            assert all(line in rest for line in (now or b"").splitlines(keepends=True))
        said = {path for path in holding if data in body_of(before[path]).lower().encode()}
        assert said <= {*changed, *(each.path for each in result.kept)}

    @rule()
    def dream(self):
        before = dict(self.model)
        result = dream(DreamRequest(), self.place, RuleWriter())
        assert result.error is None
        changed = self.moved(result.task_id)
        assert set(changed) == {*result.deduped_paths, *result.expired_paths}
        assert all(after is None for _, after in changed.values())
        for scope in SCOPES:
            said_before = {body_of(data) for path, data in before.items() if path.startswith(scope)}
            said_now = [body_of(data) for path, data in self.model.items() if path.startswith(scope)]
            assert set(said_now) == said_before
            assert len(said_now) == len(said_before)

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
            codes = {"already_undone"} if as_left else {"undo_overlap", "already_undone"}
            assert result.error.code in codes

    @rule(word=some.sampled_from(WORDS))
    def crash(self, word):
        """A remember that is killed once its file is written, and a new start."""
        request = RememberRequest(f"Killed while filing {word}", scope="user")
        with dying(Killed), suppress(Killed):
            remember(request, self.place, RuleWriter())
        upkeep.recover_all(self.place.state, self.place.roots, self.policy, FOREVER)
        self.behind["user"] = ""
        assert self.tree() == self.model

    @invariant()
    def the_files_are_those_of_the_model_and_the_indexes_and_the_chain_are_whole(self):
        if not hasattr(self, "place"):
            return
        assert self.tree() == self.model
        assert not list(self.base.rglob(".*.tmp"))
        assert audit.verify(self.place.state).problems == ()
        for scope in (scope for scope in SCOPES if not self.behind[scope]):
            index = self.base / scope / "MEMORY.md"
            entries = {path.partition("/")[2] for path in self.model if path.startswith(f"{scope}/")}
            if index.exists():
                before = index.read_bytes()
                assert list(index_problems(before, entries)) == []
                upkeep.rebuild(self.place.state, self.place.roots[scope], self.policy, FOREVER)
                assert index.read_bytes() == before
            else:
                assert not entries


TestMemory = Memory.TestCase
TestMemory.settings = settings(
    max_examples=settings.default.max_examples // 2, stateful_step_count=15, deadline=None
)
