"""Any tree, any calls, any neighbour, in any order and at any moment: a machine, and an oracle beside it.

The neighbour acts between calls; at the n-th opening of a file during a call or commit, where the tools and
the broker open by a resolver of the test. After every step:

- nothing outside was read or changed, bytes and metadata, and the canary came out nowhere;
- what a file showed is what the model of the memory, a dictionary over plain files, says;
- what is proposed is exactly what the allowed writes said.

And at a commit: it has that effect and no other, or none; after an escape by a writing tool under `abort`,
none.
"""

import contextlib
import functools
import logging
import sys

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kit.fuzz.ground import CANARY, DECOYS, NAMES, PLACES, SCOPES, THEIRS, Deed, Ground, deeds
from kit.fuzz.model import Model, is_readable
from kit.memories import descriptors, strict
from kit.strategies.calls import tool_calls
from kit.strategies.hostile_paths import unsafe_paths
from kit.strategies.trees import trees
from muniment.errors import ManagedMemoryUnavailable, MunimentError, RememberPathEscape
from muniment.kernel.binding import bind
from muniment.kernel.land import land
from muniment.kernel.root import choose_resolver
from muniment.names import Symlinks
from muniment.sandbox.fence.pool import shared_zygote
from muniment.sandbox.sandbox import Sandbox
from muniment.store.state import State
from muniment.testing.witness import sightings

WRITING = ("write_file", "edit")
CLAIMING = ("write_file", "edit", "read_file")
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
FAILURES = {"remember_path_escape", "remember_refused", "store_conflict", "managed_memory_unavailable"}
FILES = [place for place in PLACES if place.count("/") < 3 and place.endswith(("/note.md", "/a.md", "/b.md"))]
TEXTS = ("text\n", "a\n", "---\nname: a\n---\ntext\n", "text a text", "# text\n\na\n")
moments = st.integers(0, 40)


def ordinary_calls():
    """Calls that a helpful model makes; most of them are carried out."""
    path = st.sampled_from(FILES) | st.sampled_from(PLACES)
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


hostile_calls = tool_calls(st.sampled_from(PLACES) | unsafe_paths(NAMES))
calls = st.one_of(ordinary_calls(), ordinary_calls(), hostile_calls)
ordinary = st.lists(ordinary_calls(), min_size=1, max_size=4)
terms = {"behind": st.booleans(), "symlinks": st.sampled_from(list(Symlinks))}
bindings = st.fixed_dictionaries({**terms, "on_escape": st.sampled_from(["refuse", "abort"])})


@functools.cache
def policy_of(on_escape, require):
    return strict(on_escape=on_escape, require=require)


class Interrupting:
    """A resolver that lets something happen just before or after the n-th file that it opens."""

    name = "interrupting"

    def __init__(self):
        self.honest = choose_resolver()
        self.left, self.deed, self.when_landing = 0, None, None

    def open(self, dir_fd, path, purpose):
        self._tick()
        fd = self.honest.open(dir_fd, path, purpose)
        self._tick()
        return fd

    def _tick(self):
        self.left -= 1
        if self.left < 0 and self.deed is not None:
            deed, self.deed = self.deed, None
            deed()

    @contextlib.contextmanager
    def after(self, count, deed, *, late=False):
        """Let `deed` happen after `count` openings; `late`: a few openings after all is judged."""
        if late:
            self.when_landing = lambda: self._arm(count % 12, deed)
        else:
            self._arm(count, deed)
        try:
            yield
        finally:
            self.deed = self.when_landing = None

    def landing(self):
        """Files are about to land."""
        if self.when_landing is not None:
            self.when_landing()

    def _arm(self, count, deed):
        self.left, self.deed = count, deed


class Machine(RuleBasedStateMachine):
    """See the module.

    No rule has a precondition: what a race comes to differs from run to run, and with it what would be drawn.
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
        self.open_descriptors = descriptors()
        self.box, self.bound, self.state = None, {}, State(None)
        self.ground = Ground(tree)
        self.interrupting = Interrupting()
        Machine.landing = self.interrupting.landing
        self.reopen(binding)

    @rule(binding=bindings)
    def reopen(self, binding):
        """Begin another run; what was proposed is dropped."""
        self.binding = binding
        self._open(**binding)

    @rule(some=st.lists(calls, min_size=1, max_size=5))
    def work(self, some):
        for tool, arguments in some if self.box is not None else ():
            self._call(tool, arguments)

    @rule(call=calls, deed=deeds, moment=moments)
    def call_while_a_neighbour_acts(self, call, deed, moment):
        with self.interrupting.after(moment, lambda: self._neighbour(deed)):
            self.work([call])

    @rule(deed=deeds)
    def neighbour(self, deed):
        self._neighbour(deed)
        self._check_outside()

    @rule(some=ordinary)
    def commit(self, some):
        if self.box is None:
            return
        self.work(some)
        self.work([("read_file", {"path": path}) for path in self.model.pending])
        before, broken = self.ground.inventory(), self.model.broken_claims()
        committed = self._commit()
        after = self.ground.inventory()
        if committed is None:
            assert after == before, "a commit that failed left something"
            self._open(**self.binding)
            return
        assert not self.model.pending or not broken, "what it rested on had changed"
        self.model.check_effect(before, after)
        assert set(committed.touched_scopes) == self.model.touched
        assert [change.path for change in committed.changes] == sorted(self.model.pending)
        self._begin()

    @rule(some=ordinary, kind=st.sampled_from(["write", "remove", "exchange"]), which=st.integers(-15, 29))
    def commit_after_or_while_a_neighbour_changes_what_it_rests_on(self, some, kind, which):
        self.work(some)
        deed = self._deed_at_a_claim(kind, which)
        if deed and which < 0:
            self._neighbour(deed)
            self.commit([])
        elif deed:
            self._commit_during(deed, which, late=True)

    @rule(some=ordinary, deed=deeds, moment=moments, late=st.booleans())
    def commit_while_a_neighbour_acts(self, some, deed, moment, late):
        """At any moment, or once all is judged, while the files land."""
        self.work(some)
        if self.box is not None:
            self._commit_during(deed, moment, late=late)

    def teardown(self):
        if not hasattr(self, "ground"):
            return
        try:
            self._close()
            self.state.close()
            self._check_outside()
            if sys.exc_info()[0] is None:
                # Fewer are no leak: what earlier tests left running may close some meanwhile.
                assert descriptors() <= self.open_descriptors
        finally:
            logger = logging.getLogger("muniment")
            logger.removeHandler(self.listener)
            logger.setLevel(self.level)
            self.ground.close()

    # -- steps ---------------------------------------------------------------------------------------

    def _open(self, *, behind, symlinks, on_escape):
        self._close()
        with contextlib.suppress(ManagedMemoryUnavailable):  # As of a root that was replaced.
            for scope in SCOPES:
                self.bound[scope] = bind(scope, self.ground.base / scope, resolver=self.interrupting)
        paths = [root.trusted_path for root in self.bound.values()]
        if len(paths) < len(SCOPES) or self.ground.outside in paths:
            self._close()
            return
        self.ground.roots = {scope: (root.device, root.inode) for scope, root in self.bound.items()}
        policy = policy_of(on_escape, "partial" if behind else "none")
        self.box = Sandbox.for_run(policy, self.bound, self.state, in_process=not behind, symlinks=symlinks)
        self.box._is_job = False  # As of a caller who names every file himself; the roots are ours.
        self.behind, self.resolves_links = behind, symlinks is Symlinks.BENEATH
        self.aborts, self.escaped, self.is_quiet = on_escape == "abort", False, True
        self._begin()

    def _begin(self):
        """Nothing is proposed, and the links are what they are now."""
        self.model = Model(self.ground, resolves_links=self.resolves_links)
        self.box.call("ls", {"path": ""})

    def _close(self):
        if self.box is not None:
            self.box.close()
        for root in self.bound.values():
            root.close()
        self.box, self.bound = None, {}

    def _neighbour(self, deed):
        self.is_quiet = False
        self.ground.do(deed)

    def _call(self, tool, arguments):
        path = arguments.get("path", "")
        before, on_disk = self.model.known(path), self.model.on_disk(path)
        outcome = self.box.call(tool, arguments)
        known = before | self.model.known(path)
        is_new = self.model.logical(path) not in self.model.pending
        if outcome.verdict == "allow" and tool in CLAIMING and is_new:
            self.model.claim(path, on_disk | self.model.on_disk(path))
        self._check(tool, arguments, outcome, known)
        if self.is_quiet and tool == "read_file" and self._is_granted(path) and any(map(is_readable, known)):
            assert outcome.code in {None, "bad_arguments", "budget"}, outcome
        self._check_outside()

    def _is_granted(self, path):
        """Whether the policy surely lets a place be read, under both of its names."""
        names = (path, self.model.logical(path) or "")
        return path in PLACES and all(name.endswith(".md") and "/." not in name for name in names)

    def _check(self, tool, arguments, outcome, known):
        assert (outcome.verdict == "allow") == (outcome.code is None)
        assert str(self.ground.base) not in outcome.text
        assert sightings(CANARY, {"text": outcome.text}) == []
        if outcome.via is not None and tool in WRITING and self.aborts:
            self.escaped = True
        if outcome.verdict == "allow":
            self.model.learn(tool, arguments, outcome, known)
        self.model.check_proposed(self.box.changes())

    def _deed_at_a_claim(self, kind, which):
        """What a neighbour does to one of the files that the run has read or writes."""
        if self.box is None or not self.model.claims:
            return None
        place = sorted(self.model.claims)[which % len(self.model.claims)]
        return Deed(kind, place, place, DECOYS[which % len(DECOYS)])

    def _commit_during(self, deed, moment, *, late):
        before = self.ground.contents()
        with self.interrupting.after(moment, lambda: self._neighbour(deed), late=late):
            committed = self._commit()
        self._check_disturbed(committed, before, deed.place, deed.other)

    def _commit(self):
        """What was committed; None where it failed, for one of the reasons that there are."""
        try:
            committed = self.box.commit()
        except MunimentError as error:
            told = error
        else:
            assert not self.escaped, "an escape by a writing tool was committed"
            assert sightings(CANARY, {"committed": committed}) == []
            return committed
        assert told.code in FAILURES, told
        assert sightings(CANARY, {"error": str(told)}) == []
        assert isinstance(told, RememberPathEscape) or not self.escaped
        assert self.escaped or not self.is_quiet, f"nobody disturbed it: {told}"
        return None

    def _check_disturbed(self, committed, before, *places):
        """After a commit while somebody acted at some places: what was proposed landed, or nothing did."""
        after = self.ground.contents()
        if committed is not None:
            for path, texts in self.model.pending.items():
                assert path.startswith(places) or any(after[text] for text in texts), path
            self._begin()
        else:
            new = set(after - before) - {THEIRS}
            assert not self.ground.places_of(new, apart_from=places), "a commit that failed landed"
            self._open(**self.binding)
        self._check_outside()

    def _check_outside(self):
        assert self.ground.trespasses() == []
        assert sightings(CANARY, {"log": self.logged}) == []
        for scope in SCOPES:
            index = self.ground.read(f"{scope}/MEMORY.md")
            assert index is None or CANARY.encode() not in index


def run(examples, steps, monkeypatch):
    def announced(*args, **terms):
        Machine.landing()
        return land(*args, **terms)

    monkeypatch.setattr("muniment.kernel.write.land", announced)
    shared_zygote().start()
    slowly = {"deadline": None, "suppress_health_check": list(HealthCheck)}  # Real processes and a real disk.
    terms = settings(max_examples=examples, phases=PHASES, stateful_step_count=steps, **slowly)
    run_state_machine_as_test(Machine, settings=terms)


def test_whatever_is_done_in_whatever_order_nothing_leaves_and_commits_do_what_they_say(monkeypatch):
    run(4, 12, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_is_done_in_whatever_order_thoroughly(monkeypatch):
    run(40, 30, monkeypatch)
