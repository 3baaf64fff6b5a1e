"""Tokens: the owner's in a file of its own, those of clients in the ledger, by digest alone (K1 to K3)."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from contextlib import closing

import pytest

from muniment.daemon import tokens as subject
from muniment.daemon.tokens import THE_OWNER, TOKEN_NAME, Principal, Tokens, owner_token
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, NotFound
from muniment.lane import OWNER
from muniment.names import Trust
from muniment.store.audit import records
from muniment.store.database import COMPANIONS, Database
from muniment.store.state import State

OWNERS = "o" * 43
EDITOR = ("editor", ["editor-1"], Trust.AGENT)


@pytest.fixture
def state(tmp_path):
    with State(tmp_path / "state") as made:
        yield made


@pytest.fixture
def tokens(state):
    return Tokens(state)


def at_once(number, act):
    """What so many threads return that begin at once."""
    barrier, found = threading.Barrier(number), []

    def run(each):
        barrier.wait()
        found.append(act(each))

    threads = [threading.Thread(target=run, args=(each,)) for each in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == number
    return found


# -- K1: the owner's -----------------------------------------------------------------------------------


def test_the_owners_token_is_made_once_alone_on_a_line_and_ours_alone(tmp_path):
    """Daemons are kept apart by a lock before; this is what is left if somebody were not."""
    before = os.umask(0)
    try:
        (token,) = set(at_once(8, lambda _: owner_token(tmp_path)))
    finally:
        os.umask(before)
    (path,) = tmp_path.iterdir()
    assert path.name == TOKEN_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 43
    assert owner_token(tmp_path) == token
    assert path.read_text() == f"{token}\n"


def test_a_token_that_others_may_read_or_write_is_refused(tmp_path):
    owner_token(tmp_path)
    for mode in (0o644, 0o640, 0o604, 0o620, 0o601, 0o666, 0o610):
        (tmp_path / TOKEN_NAME).chmod(mode)
        with pytest.raises(ManagedMemoryUnavailable, match="delete it"):
            owner_token(tmp_path)


def symlink(path):
    (path.parent / "elsewhere").write_text(f"{OWNERS}\n")
    (path.parent / "elsewhere").chmod(0o600)
    path.symlink_to("elsewhere")


def bound(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def dangling(path):
    path.symlink_to("nowhere")


@pytest.mark.parametrize(
    "plant", [symlink, dangling, bound, lambda path: os.mkfifo(path, 0o600), lambda path: path.mkdir(0o700)]
)
def test_what_is_no_plain_file_is_refused_at_once_and_left_as_it_is(tmp_path, plant):
    path = tmp_path / TOKEN_NAME
    plant(path)
    before = path.lstat()
    with pytest.raises(ManagedMemoryUnavailable) as caught:
        owner_token(tmp_path)
    assert OWNERS not in str(caught.value)
    assert path.lstat() == before
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_holds_no_token_is_refused_and_not_quoted(tmp_path):
    path = tmp_path / TOKEN_NAME
    owner_token(tmp_path)
    for content in (
        *(b"", b"\n", b"short\n", b"o" * 129, b"o" * 300 + b"\n", b"o" * 43 + b"\n" + b"p" * 43 + b"\n"),
        *(b"o" * 20 + b" " + b"o" * 20, b"o" * 42 + b"\xe9", b"\x00" * 43, b"\xff\xfe" + b"o\x00" * 43),
        *(b"token: " + b"o" * 43, b"\xa0" + b"o" * 43),
    ):
        path.write_bytes(content)
        with pytest.raises(ManagedMemoryUnavailable, match="holds no token; delete it") as caught:
            owner_token(tmp_path)
        assert "oooo" not in str(caught.value)
        assert path.read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_token_of_another_user_is_refused(tmp_path):
    owner_token(tmp_path)
    os.chown(tmp_path / TOKEN_NAME, 4242, 4242)
    with pytest.raises(ManagedMemoryUnavailable, match="no file of yours alone"):
        owner_token(tmp_path)


def test_a_token_that_cannot_be_made_is_said_so(tmp_path):
    with pytest.raises(ManagedMemoryUnavailable, match="cannot be made: No such file"):
        owner_token(tmp_path / "missing")


# -- K2: those of clients ------------------------------------------------------------------------------


def test_a_clients_token_is_known_with_its_ids_and_its_trust_and_stands_nowhere(tokens, state):
    token = tokens.add("editor", ["editor-2", "editor-1"], Trust.EXTERNAL)
    found = tokens.principal(token, OWNERS)
    expected = Principal("editor", Trust.EXTERNAL, frozenset({"editor-1", "editor-2"}), found.digest)
    assert found == expected
    assert found.digest not in repr(found)
    assert tokens.all() == (expected,)
    assert not expected.is_owner
    assert tokens.principal(OWNERS, OWNERS) is THE_OWNER
    assert THE_OWNER.is_owner
    tokens.revoke("editor")
    for path in state.directory.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path
    bodies = [record.body for record in records(state) if record.kind == "token"]
    assert [(each.get("added"), each.get("revoked")) for each in bodies] == [
        ("editor", None),
        (None, "editor"),
    ]
    assert (bodies[0]["trust"], sorted(bodies[0]["clients"])) == ("external", ["editor-1", "editor-2"])
    assert token not in json.dumps(bodies)


def test_a_revoked_token_is_nobodys_at_once_also_for_who_reads_by_another_connection(tokens, state):
    with closing(Database(state.ledger.path, synchronous="FULL")) as reads:
        asked = Tokens(state, reads)
        old = tokens.add(*EDITOR)
        before = asked.principal(old, OWNERS)
        assert before is not None
        tokens.revoke("editor")
        assert asked.principal(old, OWNERS) is None
        assert asked.all() == ()
        new = tokens.add("editor", ["editor-1"], Trust.OWNER)  # The name can be given again, to another one.
        assert asked.principal(old, OWNERS) is None
        assert asked.principal(new, OWNERS).trust is Trust.OWNER
        tokens.revoke("editor")
        after = asked.principal(tokens.add(*EDITOR), OWNERS)
        assert before != after
        assert asked.all() == (after,)


def test_what_is_not_there_cannot_be_revoked(tokens, state):
    with pytest.raises(NotFound, match="muniment token list"):
        tokens.revoke("editor")
    assert [record for record in records(state) if record.kind == "token"] == []


def test_a_name_or_an_id_that_cannot_be_one_is_refused(tokens):
    for name in ("", OWNER, "a b", "-a", ".a", "a/b", "a\n", "a" * 65, "é", "a\x00", "../token", "Bearer x"):
        with pytest.raises(ConfigInvalid, match="cannot name a token"):
            tokens.add(name, ["editor-1"], Trust.AGENT)
    for each in ("", "a b", "-a", "a,b", "a/b", "a\n", "a" * 129, "é", 'a"', "a\r\nX: y"):
        with pytest.raises(ConfigInvalid, match="cannot be a client id"):
            tokens.add("editor", ["editor-1", each], Trust.AGENT)
    assert tokens.all() == ()


def test_of_many_who_take_one_name_or_one_id_at_once_one_has_it(tmp_path):
    def take(number):
        with State(tmp_path / "state") as state:
            try:
                return Tokens(state).add(f"name-{number % 2}", ["shared"], Trust.AGENT)
            except ConfigInvalid:
                return None

    with State(tmp_path / "state"):
        assert len([each for each in at_once(6, take) if each is not None]) == 1


# -- K3: comparing -------------------------------------------------------------------------------------


def test_what_is_not_exactly_a_token_is_nobodys(tokens, tmp_path):
    with State(tmp_path / "other") as other:
        theirs = Tokens(other).add(*EDITOR)
    tokens.add(*EDITOR)
    for sent in (
        *("", "x", OWNERS[:-1], OWNERS + "o", OWNERS.upper(), f" {OWNERS}", f"{OWNERS}\n", f"{OWNERS}\x00"),
        *("o" * 128, "o" * 1_000_000, "\u00e9" * 43, "\uff4f" * 43, "' OR 1=1 --" + "o" * 40, "%" * 43),
        theirs,
    ):
        assert tokens.principal(sent, OWNERS) is None, sent[:50]


def test_tokens_are_compared_by_digests_of_one_length_in_constant_time(tokens, monkeypatch):
    compared, real = [], subject.hmac.compare_digest
    monkeypatch.setattr(subject.hmac, "compare_digest", lambda *both: compared.append(both) or real(*both))
    token = tokens.add(*EDITOR)
    for sent in (token, OWNERS, "x" * 43):
        tokens.principal(sent, OWNERS)
    assert len(compared) == 4
    assert {len(each) for both in compared for each in both} == {64}


def test_a_row_whose_digest_is_another_one_is_believed_by_nobody(tokens, state, monkeypatch):
    """Should the ledger's own comparison be laxer than bytes: the digest is compared once more."""
    tokens.add(*EDITOR)
    rows = state.ledger.rows("SELECT name, trust, clients, digest FROM token")
    monkeypatch.setattr(tokens, "_reads", type("Lax", (), {"rows": lambda *_: rows}))
    assert tokens.principal("x" * 43, OWNERS) is None


def test_a_ledger_that_was_copied_beside_another_key_knows_no_token(tmp_path):
    """A backup that somebody else restores gives nobody access."""
    with State(tmp_path / "state") as state:
        token = Tokens(state).add(*EDITOR)
        path = state.ledger.path
    with State(tmp_path / "other") as other:
        place = other.ledger.path
    for companion in COMPANIONS:
        place.with_name(place.name + companion).unlink(missing_ok=True)
    place.write_bytes(path.read_bytes())
    with State(tmp_path / "other") as other:
        assert [each.name for each in Tokens(other).all()] == ["editor"]
        assert Tokens(other).principal(token, OWNERS) is None
