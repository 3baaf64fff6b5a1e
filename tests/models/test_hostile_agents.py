"""Any tree, any calls and any concurrent changes, in any order: a state machine and an oracle.

Another process changes files between calls, or at the n-th opening of a file during a call or commit, because
the tools and the broker use a resolver of the test. After every step:

- no file outside was read or changed (bytes and metadata), and no output contains the canary;
- the content of a read equals the model of the memory, a dictionary over plain files;
- the proposed changes are exactly the ones of the allowed writes.

A commit has exactly this effect or none; after an escape by a writing tool under `abort`, none.
"""

import contextlib
import functools
import logging
import sys

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kit.fuzz.directories import (
    CANARY,
    DECOYS,
    NAMES,
    PATHS,
    PEER_CONTENT,
    SCOPES,
    FuzzDirectories,
    PeerAction,
    peer_actions,
)
from kit.fuzz.model import MemoryModel, is_readable
from kit.memories import count_descriptors, make_strict_policy
from kit.strategies.calls import tool_calls
from kit.strategies.hostile_paths import unsafe_paths
from kit.strategies.trees import trees
from muniment.errors import ManagedMemoryUnavailable, MunimentError, RememberPathEscape
from muniment.kernel.apply import apply_changes
from muniment.kernel.binding import bind
from muniment.kernel.root import choose_resolver
from muniment.names import Symlinks
from muniment.sandbox.fence.pool import get_shared_zygote
from muniment.sandbox.sandbox import Sandbox
from muniment.store.state import State
from muniment.testing.snapshots import find_text

WRITING = ("write_file", "edit")
CLAIMING = ("write_file", "edit", "read_file")
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
FAILURES = {"remember_path_escape", "remember_refused", "store_conflict", "managed_memory_unavailable"}
FILES = [name for name in PATHS if name.count("/") < 3 and name.endswith(("/note.md", "/a.md", "/b.md"))]
TEXTS = ("text\n", "a\n", "---\nname: a\n---\ntext\n", "text a text", "# text\n\na\n")
moments = st.integers(0, 40)


def ordinary_calls():
    """Calls of a helpful model, most of which succeed."""
    path = st.sampled_from(FILES) | st.sampled_from(PATHS)
    text = st.sampled_from(TEXTS)
    piece = st.sampled_from(["text", "a", "\n"])
    edit = {"path": path, "old_string": piece, "new_string": piece | st.just("")}
    replace = st.fixed_dictionaries(edit, optional={"replace_all": st.booleans()})
    write = st.tuples(st.just("write_file"), st.fixed_dictionaries({"path": path, "content": text}))
    return st.one_of(
        write,
        write,
        st.tuples(st.just("edit"), replace),
        st.tuples(st.just("read_file"), st.fixed_dictionaries({"path": path})),
        st.tuples(st.just("ls"), st.fixed_dictionaries({"path": path | st.sampled_from(SCOPES)})),
        st.tuples(st.just("grep"), st.fixed_dictionaries({"pattern": piece}, optional={"path": path})),
    )


hostile_calls = tool_calls(st.sampled_from(PATHS) | unsafe_paths(NAMES))
calls = st.one_of(ordinary_calls(), ordinary_calls(), hostile_calls)
ordinary_batches = st.lists(ordinary_calls(), min_size=1, max_size=4)
options = {"in_worker": st.booleans(), "symlinks": st.sampled_from(list(Symlinks))}
bindings = st.fixed_dictionaries({**options, "on_escape": st.sampled_from(["refuse", "abort"])})


@functools.cache
def make_policy(on_escape, require):
    return make_strict_policy(on_escape=on_escape, require=require)


class InterruptingResolver:
    """A resolver that runs a function just before or after the n-th file that it opens."""

    name = "interrupting"

    def __init__(self):
        self.honest = choose_resolver()
        self.left, self.act, self.before_landing = 0, None, None

    def open(self, dir_fd, path, purpose):
        self._tick()
        fd = self.honest.open(dir_fd, path, purpose)
        self._tick()
        return fd

    def _tick(self):
        self.left -= 1
        if self.left < 0 and self.act is not None:
            act, self.act = self.act, None
            act()

    @contextlib.contextmanager
    def after(self, count, act, *, late=False):
        """Run `act` after `count` openings; with `late`, a few openings after the judgement."""
        if late:
            self.before_landing = lambda: self._arm(count % 12, act)
        else:
            self._arm(count, act)
        try:
            yield
        finally:
            self.act = self.before_landing = None

    def start_landing(self):
        """Run the hook before files are written."""
        if self.before_landing is not None:
            self.before_landing()

    def _arm(self, count, act):
        self.left, self.act = count, act


class Machine(RuleBasedStateMachine):
    """The state machine described in the module docstring.

    No rule has a precondition: the result of a race differs between runs, and so would the drawn steps.
    """

    @initialize(tree=trees(), binding=bindings)
    def set_up(self, tree, binding):
        self.logged = []
        self.listener = logging.Handler(logging.INFO)
        self.listener.emit = lambda record: self.logged.append(record.getMessage())
        logger = logging.getLogger("muniment")
        logger.addHandler(self.listener)
        self.level = logger.level
        logger.setLevel(logging.INFO)
        self.open_descriptors = count_descriptors()
        self.box, self.bound, self.state = None, {}, State(None)
        self.ground = FuzzDirectories(tree)
        self.resolver = InterruptingResolver()
        Machine.start_landing = self.resolver.start_landing
        self.reopen(binding)

    @rule(binding=bindings)
    def reopen(self, binding):
        """Begin another run, and drop the proposed changes."""
        self.binding = binding
        self._open(**binding)

    @rule(batch=st.lists(calls, min_size=1, max_size=5))
    def work(self, batch):
        for tool, arguments in batch if self.box is not None else ():
            self._call(tool, arguments)

    @rule(call=calls, act=peer_actions, moment=moments)
    def call_during_a_change(self, call, act, moment):
        with self.resolver.after(moment, lambda: self._apply(act)):
            self.work([call])

    @rule(act=peer_actions)
    def change_by_neighbor(self, act):
        self._apply(act)
        self._check_outside()

    @rule(batch=ordinary_batches)
    def commit(self, batch):
        if self.box is None:
            return
        self.work(batch)
        self.work([("read_file", {"path": path}) for path in self.model.pending])
        before, broken = self.ground.inventory(), self.model.find_broken_claims()
        committed = self._commit()
        after = self.ground.inventory()
        if committed is None:
            assert after == before, "a failed commit changed files"
            self._open(**self.binding)
            return
        assert not self.model.pending or not broken, "a claim of the commit had changed"
        self.model.check_effect(before, after)
        assert set(committed.touched_scopes) == self.model.touched_scopes
        assert [change.path for change in committed.changes] == sorted(self.model.pending)
        self._begin()

    @rule(
        batch=ordinary_batches,
        kind=st.sampled_from(["write", "remove", "exchange"]),
        which=st.integers(-15, 29),
    )
    def commit_with_a_changed_claim(self, batch, kind, which):
        self.work(batch)
        act = self._make_change_of_a_claim(kind, which)
        if act and which < 0:
            self._apply(act)
            self.commit([])
        elif act:
            self._commit_during(act, which, late=True)

    @rule(batch=ordinary_batches, act=peer_actions, moment=moments, late=st.booleans())
    def commit_during_a_change(self, batch, act, moment, late):
        """Change files at any moment, or after the judgement, while the files are written."""
        self.work(batch)
        if self.box is not None:
            self._commit_during(act, moment, late=late)

    def teardown(self):
        if not hasattr(self, "ground"):
            return
        try:
            self._close()
            self.state.close()
            self._check_outside()
            if sys.exc_info()[0] is None:
                # A lower number is not a leak: threads of earlier tests may close descriptors meanwhile.
                assert count_descriptors() <= self.open_descriptors
        finally:
            logger = logging.getLogger("muniment")
            logger.removeHandler(self.listener)
            logger.setLevel(self.level)
            self.ground.close()

    # -- steps ---------------------------------------------------------------------------------------

    def _open(self, *, in_worker, symlinks, on_escape):
        self._close()
        with contextlib.suppress(ManagedMemoryUnavailable):  # For example, a replaced root.
            for scope in SCOPES:
                self.bound[scope] = bind(scope, self.ground.base / scope, resolver=self.resolver)
        paths = [root.trusted_path for root in self.bound.values()]
        if len(paths) < len(SCOPES) or self.ground.outside in paths:
            self._close()
            return
        self.ground.roots = {scope: (root.device, root.inode) for scope, root in self.bound.items()}
        policy = make_policy(on_escape, "partial" if in_worker else "none")
        self.box = Sandbox.for_run(
            policy, self.bound, self.state, in_process=not in_worker, symlinks=symlinks
        )
        self.box._is_job = False  # As for a caller who names every file.
        self.in_worker, self.resolves_links = in_worker, symlinks is Symlinks.BENEATH
        self.aborts, self.escaped, self.is_quiet = on_escape == "abort", False, True
        self._begin()

    def _begin(self):
        """Start without proposals, with the current links."""
        self.model = MemoryModel(self.ground, resolves_links=self.resolves_links)
        self.box.call("ls", {"path": ""})

    def _close(self):
        if self.box is not None:
            self.box.close()
        for root in self.bound.values():
            root.close()
        self.box, self.bound = None, {}

    def _apply(self, act):
        self.is_quiet = False
        self.ground.act(act)

    def _call(self, tool, arguments):
        path = arguments.get("path", "")
        before, on_disk = self.model.list_known_texts(path), self.model.list_disk_texts(path)
        outcome = self.box.call(tool, arguments)
        known = before | self.model.list_known_texts(path)
        is_new = self.model.canonicalize(path) not in self.model.pending
        if outcome.verdict == "allow" and tool in CLAIMING and is_new:
            self.model.add_claim(path, on_disk | self.model.list_disk_texts(path))
        self._check(tool, arguments, outcome, known)
        if self.is_quiet and tool == "read_file" and self._is_allowed(path) and any(map(is_readable, known)):
            assert outcome.code in {None, "bad_arguments", "budget"}, outcome
        self._check_outside()

    def _is_allowed(self, path):
        """Return whether the policy certainly allows to read a path, under both of its names."""
        names = (path, self.model.canonicalize(path) or "")
        return path in PATHS and all(name.endswith(".md") and "/." not in name for name in names)

    def _check(self, tool, arguments, outcome, known):
        assert (outcome.verdict == "allow") == (outcome.code is None)
        assert str(self.ground.base) not in outcome.text
        assert find_text(CANARY, {"text": outcome.text}) == []
        if outcome.via is not None and tool in WRITING and self.aborts:
            self.escaped = True
        if outcome.verdict == "allow":
            self.model.check_outcome(tool, arguments, outcome, known)
        self.model.check_proposed(self.box.changes())

    def _make_change_of_a_claim(self, kind, which):
        """Return a change of a file that the run has read or writes."""
        if self.box is None or not self.model.claims:
            return None
        path_of_claim = sorted(self.model.claims)[which % len(self.model.claims)]
        return PeerAction(kind, path_of_claim, path_of_claim, DECOYS[which % len(DECOYS)])

    def _commit_during(self, act, moment, *, late):
        before = self.ground.count_contents()
        with self.resolver.after(moment, lambda: self._apply(act), late=late):
            committed = self._commit()
        self._check_disturbed(committed, before, act.path, act.other_path)

    def _commit(self):
        """Return the commit, or None after one of the expected failures."""
        try:
            committed = self.box.commit()
        except MunimentError as error:
            caught = error
        else:
            assert not self.escaped, "an escape by a writing tool was committed"
            assert find_text(CANARY, {"committed": committed}) == []
            return committed
        assert caught.code in FAILURES, caught
        assert find_text(CANARY, {"error": str(caught)}) == []
        assert isinstance(caught, RememberPathEscape) or not self.escaped
        assert self.escaped or not self.is_quiet, f"no concurrent change: {caught}"
        return None

    def _check_disturbed(self, committed, before, *changed_paths):
        """Check a commit with concurrent changes: all proposed changes are written, or none."""
        after = self.ground.count_contents()
        if committed is not None:
            for path, texts in self.model.pending.items():
                assert path.startswith(changed_paths) or any(after[text] for text in texts), path
            self._begin()
        else:
            new = set(after - before) - {PEER_CONTENT}
            assert not self.ground.find_files_with(new, excluded=changed_paths), "a failed commit wrote files"
            self._open(**self.binding)
        self._check_outside()

    def _check_outside(self):
        assert self.ground.find_outside_changes() == []
        assert find_text(CANARY, {"log": self.logged}) == []
        for scope in SCOPES:
            index = self.ground.read(f"{scope}/MEMORY.md")
            assert index is None or CANARY.encode() not in index


def run_machine(examples, steps, monkeypatch):
    def land_after_hook(*args, **options):
        Machine.start_landing()
        return apply_changes(*args, **options)

    monkeypatch.setattr("muniment.kernel.write.apply_changes", land_after_hook)
    get_shared_zygote().start()
    slow_settings = {
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
    }  # Processes and disk are real.
    options = settings(max_examples=examples, phases=PHASES, stateful_step_count=steps, **slow_settings)
    run_state_machine_as_test(Machine, settings=options)


def test_any_steps_stay_inside_and_commit_exactly(monkeypatch):
    run_machine(4, 12, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_steps_stay_inside_and_commit_exactly(monkeypatch):
    run_machine(40, 30, monkeypatch)
