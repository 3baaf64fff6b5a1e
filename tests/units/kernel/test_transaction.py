"""The order of a transaction, and its end: nothing is written or completed outside of it."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import Mock

import pytest

from kit.store.ground import by, lax, new, patience
from kit.store.ground import change_set as proposed
from muniment.kernel.commit import transaction
from muniment.kernel.refusal import ManagedMemoryUnavailable
from muniment.kernel.write import recover
from muniment.store.journal import LedgerJournal
from muniment.store.ledger import commits

FACTS = Mock(**{"alike.return_value": frozenset(), "usage.return_value": (0, 0)})


@pytest.fixture
def journal(ground):
    return LedgerJournal(ground.state, ground.roots, by("task-1"))


def opened(ground, journal, parts):
    """Return a transaction that is not entered yet."""
    return transaction(
        parts,
        policy=lax(),
        roots=ground.roots,
        journal=journal,
        gates=lambda _: None,
        facts=FACTS,
        patience=patience(),
    )


def test_write_before_recovery_is_refused(ground, journal):
    before, parts = ground.contents(), [proposed([new("user/n.md")])]
    with opened(ground, journal, parts) as tx:
        current, _ = tx.resolve(parts)
        judged = tx.judge(current)
        with pytest.raises(RuntimeError, match="recover"), tx.write(judged):
            pass
    assert ground.contents() == before
    assert journal.unfinished(ground.roots) == []


def test_write_after_failed_recovery_is_refused(ground, journal):
    parts = [proposed([new("user/n.md")])]
    with opened(ground, journal, parts) as tx:
        with pytest.raises(OSError, match="index"), tx.recover():
            raise OSError("index")
        judged = tx.judge(tx.resolve(parts)[0])
        with pytest.raises(RuntimeError, match="recover"), tx.write(judged):
            pass
    assert not (ground.user / "n.md").exists()


def test_write_that_ends_without_its_locks_is_not_completed(ground, journal):
    """Somebody else may have rolled it back by then."""
    before, parts = ground.contents(), [proposed([new("user/n.md")])]
    writing = ExitStack()
    with opened(ground, journal, parts) as tx:
        with tx.recover():
            pass
        written = writing.enter_context(tx.write(tx.judge(tx.resolve(parts)[0])))
        written.land()
        assert (ground.user / "n.md").exists()
    with pytest.raises(KeyError):
        written.finish(())
    with pytest.raises(RuntimeError, match="without a call of finish"):
        writing.close()
    assert len(journal.unfinished(ground.roots)) == 1
    with opened(ground, journal, parts) as tx, tx.recover() as (recovered,):
        assert recovered.left == ()
    assert ground.contents() == before
    assert journal.unfinished(ground.roots) == []


def landed(ground, journal, parts, act):
    """Land a commit, call `act` with its transaction and writing, then finish; return the error, or None."""
    with opened(ground, journal, parts) as tx:
        with tx.recover():
            pass
        judged = tx.judge(tx.resolve(parts)[0])
        with tx.write(judged) as writing:
            writing.land()
            act(tx, judged, writing)
            writing.finish(())


def recover_again(tx, _judged, _writing):
    with tx.recover():
        pass


def recover_by_hand(tx, _judged, _writing):
    with recover(tx.locked, tx._journal, lax(), FACTS):
        pass


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (recover_again, RuntimeError),
        (recover_by_hand, ManagedMemoryUnavailable),
        (lambda tx, judged, _: tx.write(judged), RuntimeError),
        (lambda _tx, _judged, writing: writing.finish(()) or writing.finish(()), ManagedMemoryUnavailable),
    ],
    ids=["recover", "recover by hand", "write", "finish twice"],
)
def test_commit_that_is_closed_by_another_way_is_an_error(ground, journal, act, error):
    with pytest.raises(error):
        landed(ground, journal, [proposed([new("user/n.md")])], act)
    is_done = bool(commits(ground.state, "done IS NOT NULL"))
    assert (ground.user / "n.md").exists() == is_done


def test_block_without_finish_is_rolled_back_and_an_error(ground, journal):
    before, parts = ground.contents(), [proposed([new("user/n.md")])]
    with opened(ground, journal, parts) as tx:
        with tx.recover():
            pass
        with (
            pytest.raises(RuntimeError, match="without a call of finish"),
            tx.write(tx.judge(tx.resolve(parts)[0])) as writing,
        ):
            writing.land()
    assert ground.contents() == before
