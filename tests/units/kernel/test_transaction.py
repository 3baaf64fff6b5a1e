"""Order and end of a transaction: nothing is written or completed outside of it."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import Mock

import pytest

from kit.store.bench import make_change_set as proposed
from kit.store.bench import make_deadline, make_lax_policy, make_run, propose_new
from muniment.kernel.commit import transaction
from muniment.kernel.refusal import ManagedMemoryUnavailable
from muniment.kernel.write import recover
from muniment.store.journal import LedgerJournal
from muniment.store.ledger import read_commits

ROOT_INFO = Mock(**{"find_aliases.return_value": frozenset(), "usage.return_value": (0, 0)})


@pytest.fixture
def journal(store_bench):
    return LedgerJournal(store_bench.state, store_bench.roots, make_run("task-1"))


def create_transaction(ground, journal, parts):
    """Return a transaction that is not entered yet."""
    return transaction(
        parts,
        policy=make_lax_policy(),
        roots=ground.roots,
        journal=journal,
        gates=lambda _: None,
        root_info=ROOT_INFO,
        deadline=make_deadline(),
    )


def test_write_before_recovery_is_rejected(store_bench, journal):
    before, parts = store_bench.read_contents(), [proposed([propose_new("user/n.md")])]
    with create_transaction(store_bench, journal, parts) as tx:
        current, _ = tx.resolve(parts)
        judged = tx.judge(current)
        with pytest.raises(RuntimeError, match="recover"), tx.write(judged):
            pass
    assert store_bench.read_contents() == before
    assert journal.list_unfinished(store_bench.roots) == []


def test_write_after_failed_recovery_is_rejected(store_bench, journal):
    parts = [proposed([propose_new("user/n.md")])]
    with create_transaction(store_bench, journal, parts) as tx:
        with pytest.raises(OSError, match="index"), tx.recover():
            raise OSError("index")
        judged = tx.judge(tx.resolve(parts)[0])
        with pytest.raises(RuntimeError, match="recover"), tx.write(judged):
            pass
    assert not (store_bench.user / "n.md").exists()


def test_write_without_locks_at_end_is_not_completed(store_bench, journal):
    """Release the locks before the end: another process may have rolled the commit back by then."""
    before, parts = store_bench.read_contents(), [proposed([propose_new("user/n.md")])]
    writing = ExitStack()
    with create_transaction(store_bench, journal, parts) as tx:
        with tx.recover():
            pass
        written = writing.enter_context(tx.write(tx.judge(tx.resolve(parts)[0])))
        written.apply()
        assert (store_bench.user / "n.md").exists()
    with pytest.raises(KeyError):
        written.finish(())
    with pytest.raises(RuntimeError, match="without a call of finish"):
        writing.close()
    assert len(journal.list_unfinished(store_bench.roots)) == 1
    with create_transaction(store_bench, journal, parts) as tx, tx.recover() as (recovered,):
        assert recovered.skipped == ()
    assert store_bench.read_contents() == before
    assert journal.list_unfinished(store_bench.roots) == []


def apply_and_finish(ground, journal, parts, act):
    """Apply a commit, call `act` with its transaction and writer, then finish the commit."""
    with create_transaction(ground, journal, parts) as tx:
        with tx.recover():
            pass
        judged = tx.judge(tx.resolve(parts)[0])
        with tx.write(judged) as writing:
            writing.apply()
            act(tx, judged, writing)
            writing.finish(())


def repeat_recovery(tx, _judged, _writing):
    with tx.recover():
        pass


def recover_directly(tx, _judged, _writing):
    with recover(tx.locked, tx._journal, make_lax_policy(), ROOT_INFO):
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
def test_commit_finished_in_another_way_raises(store_bench, journal, act, error):
    with pytest.raises(error):
        apply_and_finish(store_bench, journal, [proposed([propose_new("user/n.md")])], act)
    is_done = bool(read_commits(store_bench.state, "done IS NOT NULL"))
    assert (store_bench.user / "n.md").exists() == is_done


def test_block_without_finish_is_rolled_back_and_raises(store_bench, journal):
    before, parts = store_bench.read_contents(), [proposed([propose_new("user/n.md")])]
    with create_transaction(store_bench, journal, parts) as tx:
        with tx.recover():
            pass
        with (
            pytest.raises(RuntimeError, match="without a call of finish"),
            tx.write(tx.judge(tx.resolve(parts)[0])) as writing,
        ):
            writing.apply()
    assert store_bench.read_contents() == before
