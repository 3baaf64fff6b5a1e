"""The memory equals a plain dictionary after any steps.

Remember, forget, dream, undo, manual edits and crashes in sequence, over a real directory. The model is a
dictionary of paths and bytes, with the changes of each task. It shares no code with the memory.
"""

import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.memories import make_roots, make_strict_policy
from kit.operations.contexts import open_context
from kit.store.crashes import crash_after_write, read_files
from muniment.agent.filing import RuleWriter
from muniment.kernel.cancel import Deadline
from muniment.operations.dream import dream
from muniment.operations.forget import forget
from muniment.operations.remember import remember
from muniment.operations.review import undo_task
from muniment.store import audit, index_upkeep, recovery
from muniment.testing.corpus.index_oracle import find_index_problems
from muniment.types import DreamRequest, ForgetRequest, RememberRequest

WORDS = ["alder", "birch", "cedar", "dogwood", "elm", "fir", "gum", "hazel"]
UNKNOWN = {"a", "the", "oak"}
SCOPES = ("user", "project")
EDIT_KINDS = ("append", "new", "remove", "bullets")
FOREVER = Deadline(float("inf"))


class SimulatedKill(BaseException):
    """Simulates a kill in the middle of a commit."""


def parse_body(data):
    """Return the text below the front matter."""
    text = data.decode()
    return (text.split("\n---\n", 1)[1] if text.startswith("---\n") else text).strip()


class Memory(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.stack = ExitStack()
        self.base = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        policy = make_strict_policy(require="none")
        changes = replace(policy.changes, max_scope_share=1.0, max_forget=3)
        self.policy = replace(policy, changes=changes)
        self.context = self.stack.enter_context(open_context(make_roots(self.base), self.policy))
        self.model, self.done = {}, []
        self.index_difference = dict.fromkeys(
            SCOPES, ""
        )  # the reason why an index may differ from its entries

    def teardown(self):
        if hasattr(self, "stack"):
            self.stack.close()

    def tree(self):
        found = ((scope, *item) for scope in SCOPES for item in read_files(self.base / scope).items())
        return {f"{scope}/{rel}": data for scope, rel, data in found if rel.endswith(".md")}

    def record_changes(self, task):
        """Return the changes of a task on the disk, and update the model."""
        before, after = self.model, self.tree()
        pairs = {path: (before.get(path), after.get(path)) for path in {*before, *after}}
        changed = {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}
        self.model = after
        if changed:
            self.done.append((task, changed))
        for scope in {path.partition("/")[0] for path in changed}:
            if self.index_difference[scope] != "an edit in place":
                self.index_difference[scope] = ""
        return changed

    @rule(names=st.sets(st.sampled_from(WORDS), min_size=1, max_size=3), scope=st.sampled_from(SCOPES))
    def remember(self, names, scope):
        fact = f"The user likes {' and '.join(sorted(names))}"
        known = any(parse_body(data) == fact for path, data in self.model.items() if path.startswith(scope))
        result = remember(RememberRequest(fact, scope=scope), self.context, RuleWriter())
        assert result.error is None
        changed = self.record_changes(result.task_id)
        assert set(changed) == set(result.files_touched)
        assert result.unchanged == known
        assert len(changed) == (not known)
        for path, (before, after) in changed.items():
            assert before is None
            assert path.startswith(f"{scope}/")
            assert parse_body(after) == fact

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0), word=st.sampled_from(WORDS), kind=st.sampled_from(EDIT_KINDS))
    def edit_by_hand(self, which, word, kind):
        path = sorted(self.model)[which % len(self.model)]
        path = {"new": f"project/hand-{word}.md", "bullets": f"user/list-{word}.md"}.get(kind, path)
        scope, at = path.partition("/")[0], self.base / path
        is_in_place = at.exists() and kind != "remove"
        self.index_difference[scope] = (
            "an edit in place" if is_in_place else self.index_difference[scope] or "a name"
        )
        if kind == "remove":
            del self.model[path]
            at.unlink()
            return
        texts = {
            "append": self.model.get(path, b"") + f"More about {word}.\n".encode(),
            "new": f"# {word}\nBy hand: {word}.\n".encode(),
            "bullets": f"# List\n\n- about {word}\n- about stones\n".encode(),
        }
        self.model[path] = texts[kind]
        at.parent.mkdir(exist_ok=True)
        at.write_bytes(texts[kind])

    @rule(scope=st.sampled_from(SCOPES))
    def rebuild(self, scope):
        index_upkeep.rebuild_index(self.context.state, self.context.roots[scope], self.policy, FOREVER)
        self.index_difference[scope] = ""

    @rule(word=st.sampled_from([*WORDS, *sorted(UNKNOWN)]))
    def forget(self, word):
        before, data = dict(self.model), word.encode()
        matching_paths = {path for path in before if data in before[path].lower()}
        result = forget(ForgetRequest(word), self.context, RuleWriter())
        changed = self.record_changes(result.task_id)
        if word in UNKNOWN or len(matching_paths) > 3:
            assert not changed
            return
        assert result.error is None
        assert set(changed) <= matching_paths
        for path, (was, now) in changed.items():
            assert was == before[path]
            # The rest of a file is a subset of its lines in the same order.
            rest = iter(was.splitlines(keepends=True))
            assert all(line in rest for line in (now or b"").splitlines(keepends=True))
        named_paths = {path for path in matching_paths if data in parse_body(before[path]).lower().encode()}
        assert named_paths <= {*changed, *(each.path for each in result.kept)}

    @rule()
    def dream(self):
        before = dict(self.model)
        result = dream(DreamRequest(), self.context, RuleWriter())
        assert result.error is None
        changed = self.record_changes(result.task_id)
        assert set(changed) == {*result.deduped_paths, *result.expired_paths}
        assert all(after is None for _, after in changed.values())
        for scope in SCOPES:
            bodies_before = {parse_body(data) for path, data in before.items() if path.startswith(scope)}
            bodies_after = [parse_body(data) for path, data in self.model.items() if path.startswith(scope)]
            assert set(bodies_after) == bodies_before
            assert len(bodies_after) == len(bodies_before)

    @precondition(lambda self: self.done)
    @rule(which=st.integers(0))
    def undo(self, which):
        task, changes = self.done[which % len(self.done)]
        is_unchanged = all(self.model.get(path) == after for path, (_, after) in changes.items())
        result = undo_task(task, self.context)
        changed = self.record_changes(result.task_id)
        if result.error is None:
            assert is_unchanged
            assert changed == {path: (after, before) for path, (before, after) in changes.items()}
        else:
            assert not changed
            codes = {"already_undone"} if is_unchanged else {"undo_overlap", "already_undone"}
            assert result.error.code in codes

    @rule(word=st.sampled_from(WORDS))
    def crash(self, word):
        """Kill a remember after its file is written, and restart."""
        request = RememberRequest(f"Killed while filing {word}", scope="user")
        with crash_after_write(SimulatedKill), suppress(SimulatedKill):
            remember(request, self.context, RuleWriter())
        recovery.recover_roots(self.context.state, self.context.roots, self.policy, FOREVER)
        self.index_difference["user"] = ""
        assert self.tree() == self.model

    @invariant()
    def files_indexes_and_records_match(self):
        if not hasattr(self, "context"):
            return
        assert self.tree() == self.model
        assert not list(self.base.rglob(".*.tmp"))
        assert audit.verify(self.context.state).problems == ()
        for scope in (scope for scope in SCOPES if not self.index_difference[scope]):
            index = self.base / scope / "MEMORY.md"
            entries = {path.partition("/")[2] for path in self.model if path.startswith(f"{scope}/")}
            if index.exists():
                before = index.read_bytes()
                assert list(find_index_problems(before, entries)) == []
                index_upkeep.rebuild_index(
                    self.context.state, self.context.roots[scope], self.policy, FOREVER
                )
                assert index.read_bytes() == before
            else:
                assert not entries


TestMemory = Memory.TestCase
TestMemory.settings = settings(
    max_examples=settings.default.max_examples // 2, stateful_step_count=15, deadline=None
)
