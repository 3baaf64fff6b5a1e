"""Commits and rollbacks that fail, are interrupted or are killed at any system call, while peers edit the
files.

The faults at a call and the oracle are in `kit/store/fault_injection.py`, whose command tries 100 000 cases.
Here some of them are tried, and the same faults through `muniment.open` with the real ledger.
"""

import errno
import itertools
import os
import random
import signal
from unittest.mock import patch

import pytest

from kit.store.fault_injection import (
    PEER_ACTIONS,
    FaultCase,
    count_calls,
    draw_case,
    list_single_faults,
    run_cases,
)
from kit.store.processes import assert_dies
from muniment.kernel import _directory, root
from muniment.kernel._directory import Directory
from muniment.kernel.names import Trust
from muniment.kernel.refusal import ManagedMemoryUnavailable, RollbackFailed
from muniment.types import RememberRequest

FACTS = ("I like green tea.", "I use vim as my editor.", "My cat is called Tom.")
LIST = "".join(f"- {fact}\n" for fact in FACTS)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MUNIMENT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def open_memory(home):
    import muniment

    return muniment.open(home.parent, home=home)


def remember_as_agent(memory):
    return memory.try_remember(RememberRequest(LIST, scope="user", trust=Trust.AGENT, task_id="task-1"))


def read_entries(home):
    """Return the paths of the entries by their facts."""
    found = {path: path.read_text() for path in (home / "user").rglob("*.md") if path.name != "MEMORY.md"}
    return {fact: path for fact in FACTS for path, text in found.items() if fact.rstrip(".") in text}


def at_rename(number, act):
    """Run `act` after the rename with this number that creates the name of an entry."""
    real, count = _directory._renameat2, itertools.count(1)

    def rename(call, from_fd, old, to_fd, new, flags):
        result = real(call, from_fd, old, to_fd, new, flags)
        if not new.startswith(b".muniment-") and next(count) == number:
            act()
        return result

    return patch.object(_directory, "_renameat2", rename)


def kill_at_second_file(home):
    """Remember three facts of an agent in a process that is killed after two files have their names."""

    def remember():
        with open_memory(home) as memory, at_rename(2, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            remember_as_agent(memory)

    assert_dies(remember)
    assert len(read_entries(home)) == 2


# -- in the kernel, every call


@pytest.mark.threat("T-IDX-02", control="proven_rollback")
@pytest.mark.threat("T-IDX-02", control="displaced_kept")
@pytest.mark.timeout(900)
def test_commit_with_faults_at_any_call_is_all_or_nothing(tmp_path):
    dice = random.Random(41)
    counts = count_calls(tmp_path)
    cases = [
        *itertools.islice(list_single_faults(counts), 0, None, 37),
        *(draw_case(dice, counts) for _ in range(300)),
    ]
    # A peer shortens a file during an exchange; an interrupt comes before that is checked.
    cases += [
        FaultCase([{at: ("kill", "before")}], [{at - 1: [(deed, rel)]}])
        for at in range(2, counts[0], 5)
        for deed, rel in (("shorten", "a.md"), ("shorten", "topic/t.md"))
    ]
    wrong = ((case, problems) for case, problems, _ in run_cases(cases, tmp_path) if problems)
    assert next(wrong, None) is None
    peers = (deeds for case in cases for each in case.peers for deeds in each.values())
    assert {deed for deeds in peers for deed, _ in deeds} == {*PEER_ACTIONS}


def test_second_edit_during_an_exchange_leaves_no_temporary_name(tmp_path):
    """A peer replaces a file before the exchange and again before it is undone."""
    calls, _, _ = count_calls(tmp_path)
    deed = [("replace", "topic/t.md")]
    cases = [FaultCase([{}], [{at: deed, at + later: deed}]) for at in range(1, calls) for later in (3, 4)]
    wrong = ((case, problems) for case, problems, _ in run_cases(cases, tmp_path) if problems)
    assert next(wrong, None) is None


# -- through the library, with the real ledger


@pytest.mark.threat("T-IDX-02", control="proven_rollback")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ENXIO])
def test_recovery_that_cannot_read_a_file_keeps_the_intent(home, number):
    kill_at_second_file(home)
    real, (_, second) = root.Openat2Resolver.open, sorted(read_entries(home).values())

    def fail_open(self, dir_fd, path, purpose):
        if path == second.name.encode():
            raise OSError(number, os.strerror(number))
        return real(self, dir_fd, path, purpose)

    with patch.object(root.Openat2Resolver, "open", fail_open), open_memory(home) as memory:
        assert any(
            second.name in note and "cannot be rolled back now" in note for note in memory.context.notes
        )
        assert second.exists()  # It is visible, with the trust of the caller.
        with pytest.raises(ManagedMemoryUnavailable, match="cannot be rolled back now"):
            memory.remember("The moon is far away.", scope="user")
    with open_memory(home) as memory:
        assert any("rolled back task-1" in note for note in memory.context.notes)
        assert read_entries(home) == {}
        assert memory.history() == ()
        assert remember_as_agent(memory).status == "completed"
        assert len(read_entries(home)) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.threat("T-IDX-02", control="proven_rollback")
def test_second_interrupt_during_a_rollback_keeps_the_intent(home, error):
    def interrupt():
        raise error

    def raise_error(*_):
        raise error

    twice = patch.object(Directory, "remove", raise_error), at_rename(2, interrupt)
    with twice[0], twice[1], pytest.raises(error), open_memory(home) as memory:
        remember_as_agent(memory)
    assert len(read_entries(home)) == 2
    with open_memory(home) as memory:
        assert read_entries(home) == {}
        assert memory.history() == ()
        assert memory.remember("The moon is far away.", scope="user").status == "completed"


@pytest.mark.threat("T-IDX-02", control="kept_conflicts")
def test_edit_of_an_interrupted_commit_keeps_trust_and_history(home):
    """A peer added a line to a file that an agent's commit had written before it was killed."""
    kill_at_second_file(home)
    edited = next(iter(read_entries(home).values()))
    as_written = edited.read_bytes()
    edited.write_bytes(as_written + b"And a line of mine.\n")
    path = edited.relative_to(home).as_posix()
    with open_memory(home) as memory:
        assert any(path in note and "recovery_conflict" in note for note in memory.context.notes)
        assert list(read_entries(home).values()) == [edited]
        (step,) = memory.history()
        assert (step.path, step.trust) == (path, Trust.AGENT)
        assert memory.why(path).trust is Trust.AGENT
    edited.write_bytes(as_written)
    with open_memory(home) as memory:
        assert memory.why(path).trust is Trust.AGENT


def test_open_after_a_failed_recovery_names_the_files(home):
    kill_at_second_file(home)
    error = RollbackFailed("memory", "an interrupted change of user/a.md cannot be rolled back now")
    with patch("muniment.opening.recover_roots", side_effect=error), open_memory(home) as memory:
        assert str(error) in memory.context.notes
