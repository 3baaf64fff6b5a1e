"""Order and end of a transaction: nothing is written or completed outside of it."""

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

ROOT_INFO = Mock(**{"alike.return_value": frozenset(), "usage.return_value": (0, 0)})


@pytest.fixture
def journal(ground):
    return LedgerJournal(ground.state, ground.roots, by("task-1"))


def create_transaction(ground, journal, parts):
    """Return a transaction that is not entered yet."""
    return transaction(
        parts,
        policy=lax(),
        roots=ground.roots,
        journal=journal,
        gates=lambda _: None,
        facts=ROOT_INFO,
        patience=patience(),
    )


def test_write_before_recovery_is_rejected(ground, journal):
    before, parts = ground.contents(), [proposed([new("user/n.md")])]
    with create_transaction(ground, journal, parts) as tx:
        current, _ = tx.resolve(parts)
        judged = tx.judge(current)
        with pytest.raises(RuntimeError, match="recover"), tx.write(judged):
            pass
    assert ground.contents() == before
    assert journal.unfinished(ground.roots) == []


def test_write_after_failed_recovery_is_rejected(ground, journal):
    parts = [proposed([new("user/n.md")])]
    with create_transaction(ground, journal, parts) as tx:
        with pytest.raises(OSError, match="index"), tx.recover():
            raise OSError("index")
        judged = tx.judge(tx.resolve(parts)[0])
        with pytest.raises(RuntimeError, match="recover"), tx.write(judged):
            pass
    assert not (ground.user / "n.md").exists()


def test_write_without_locks_at_end_is_not_completed(ground, journal):
    """Release the locks before the end: another process may have rolled the commit back by then."""
    before, parts = ground.contents(), [proposed([new("user/n.md")])]
    writing = ExitStack()
    with create_transaction(ground, journal, parts) as tx:
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
    with create_transaction(ground, journal, parts) as tx, tx.recover() as (recovered,):
        assert recovered.left == ()
    assert ground.contents() == before
    assert journal.unfinished(ground.roots) == []


def apply_and_finish(ground, journal, parts, act):
    """Apply a commit, call `act` with its transaction and writer, then finish the commit."""
    with create_transaction(ground, journal, parts) as tx:
        with tx.recover():
            pass
        judged = tx.judge(tx.resolve(parts)[0])
        with tx.write(judged) as writing:
            writing.land()
            act(tx, judged, writing)
            writing.finish(())


def repeat_recovery(tx, _judged, _writing):
    with tx.recover():
        pass


def recover_directly(tx, _judged, _writing):
    with recover(tx.locked, tx._journal, lax(), ROOT_INFO):
        pass


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (repeat_recovery, RuntimeError),
        (recover_directly, ManagedMemoryUnavailable),
        (lambda tx, judged, _: tx.write(judged), RuntimeError),
        (lambda _tx, _judged, writing: writing.finish(()) or writing.finish(()), ManagedMemoryUnavailable),
    ],
    ids=["recover", "recover by hand", "write", "finish twice"],
)
def test_commit_finished_in_another_way_raises(ground, journal, act, error):
    with pytest.raises(error):
        apply_and_finish(ground, journal, [proposed([new("user/n.md")])], act)
    is_done = bool(commits(ground.state, "done IS NOT NULL"))
    assert (ground.user / "n.md").exists() == is_done


def test_block_without_finish_is_rolled_back_and_raises(ground, journal):
    before, parts = ground.contents(), [proposed([new("user/n.md")])]
    with create_transaction(ground, journal, parts) as tx:
        with tx.recover():
            pass
        with (
            pytest.raises(RuntimeError, match="without a call of finish"),
            tx.write(tx.judge(tx.resolve(parts)[0])) as writing,
        ):
            writing.land()
    assert ground.contents() == before
