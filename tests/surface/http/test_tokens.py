"""Tokens: the owner's in a file of its own, those of clients in the ledger, by digest alone (K1 to K3)."""

from __future__ import annotations

import hmac
import json
import os
import socket
import stat
import threading

import pytest

from muniment.daemon import guard as subject
from muniment.daemon.tokens import THE_OWNER, TOKEN_NAME, Principal, Tokens, owner_token
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, NotFound
from muniment.lane import OWNER
from muniment.names import Trust
from muniment.store.audit import records
from muniment.store.database import COMPANIONS, Database
from muniment.store.state import State

OWNERS = "o" * 43


@pytest.fixture
def state(tmp_path):
    with State(tmp_path / "state") as made:
        yield made


@pytest.fixture
def tokens(state):
    return Tokens(state)


# -- K1: the owner's -----------------------------------------------------------------------------------


def test_the_owners_token_is_made_once_alone_on_a_line_and_ours_alone(tmp_path):
    before = os.umask(0)
    try:
        token = owner_token(tmp_path)
    finally:
        os.umask(before)
    path = tmp_path / TOKEN_NAME
    assert path.read_text() == f"{token}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 43
    assert owner_token(tmp_path) == token
    assert path.read_text() == f"{token}\n"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601, 0o666, 0o610])
def test_a_token_that_others_may_read_or_write_is_refused(tmp_path, mode):
    owner_token(tmp_path)
    (tmp_path / TOKEN_NAME).chmod(mode)
    with pytest.raises(ManagedMemoryUnavailable, match="delete it"):
        owner_token(tmp_path)


def symlink(path):
    (path.parent / "elsewhere").write_text(f"{OWNERS}\n")
    (path.parent / "elsewhere").chmod(0o600)
    path.symlink_to("elsewhere")


def dangling(path):
    path.symlink_to("nowhere")


def bound(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    "plant",
    [symlink, dangling, lambda path: os.mkfifo(path, 0o600), lambda path: path.mkdir(0o700), bound],
    ids=["symlink", "dangling symlink", "fifo", "directory", "socket"],
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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"short\n",
        b"o" * 129,
        b"o" * 300 + b"\n",
        b"o" * 43 + b"\n" + b"p" * 43 + b"\n",
        b"o" * 20 + b" " + b"o" * 20,
        b"o" * 42 + b"\xe9",
        b"\x00" * 43,
        b"\xff\xfe" + b"o\x00" * 43,
        b"token: " + b"o" * 43,
        b"\xa0" + b"o" * 43,
    ],
)
def test_a_file_that_holds_no_token_is_refused_and_not_quoted(tmp_path, content):
    path = tmp_path / TOKEN_NAME
    path.write_bytes(content)
    path.chmod(0o600)
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


def test_of_many_who_start_at_once_all_have_the_token_that_stands_there(tmp_path):
    """Daemons are kept apart by a lock before; this is what is left if somebody were not."""
    found = []
    barrier = threading.Barrier(8)

    def start():
        barrier.wait()
        found.append(owner_token(tmp_path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"{token}\n" for token in found} == {(tmp_path / TOKEN_NAME).read_text()}
    assert len(found) == 8
    assert [each.name for each in tmp_path.iterdir()] == [TOKEN_NAME]


# -- K2: those of clients ------------------------------------------------------------------------------


def test_a_clients_token_is_known_with_its_ids_and_its_trust(tokens):
    token = tokens.add("editor", ["editor-2", "editor-1"], Trust.AGENT)
    found = tokens.principal(token, OWNERS)
    expected = Principal("editor", Trust.AGENT, frozenset({"editor-1", "editor-2"}), found.digest)
    assert found == expected
    assert found.digest not in repr(found)
    assert tokens.all() == (expected,)
    assert not expected.is_owner
    assert tokens.principal(OWNERS, OWNERS) is THE_OWNER
    assert THE_OWNER.is_owner


def test_a_clients_token_stands_nowhere(tokens, state):
    token = tokens.add("editor", ["editor-1"], Trust.AGENT)
    for path in state.directory.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


def test_adding_and_revoking_are_on_record_without_the_token(tokens, state):
    token = tokens.add("editor", ["editor-1"], Trust.EXTERNAL)
    tokens.revoke("editor")
    bodies = [record.body for record in records(state) if record.kind == "token"]
    assert bodies == [
        {"added": "editor", "clients": ["editor-1"], "trust": "external"},
        {"revoked": "editor"},
    ]
    assert token not in json.dumps(bodies)


def test_a_revoked_token_is_nobodys_at_once_also_for_who_reads_by_another_connection(tokens, state):
    reads = Database(state.ledger.path, synchronous="FULL")
    try:
        asked = Tokens(state, reads)
        token = tokens.add("editor", ["editor-1"], Trust.AGENT)
        assert asked.principal(token, OWNERS) is not None
        tokens.revoke("editor")
        assert asked.principal(token, OWNERS) is None
        assert asked.all() == ()
    finally:
        reads.close()


def test_a_name_that_is_there_no_more_can_be_given_again_and_the_old_token_stays_nobodys(tokens):
    old = tokens.add("editor", ["editor-1"], Trust.AGENT)
    tokens.revoke("editor")
    new = tokens.add("editor", ["editor-1"], Trust.OWNER)
    assert tokens.principal(old, OWNERS) is None
    assert tokens.principal(new, OWNERS).trust is Trust.OWNER


def test_a_token_that_was_made_anew_by_the_same_name_is_another_one(tokens):
    before = tokens.principal(tokens.add("editor", ["editor-1"], Trust.AGENT), OWNERS)
    tokens.revoke("editor")
    after = tokens.principal(tokens.add("editor", ["editor-1"], Trust.AGENT), OWNERS)
    assert before != after
    assert before not in tokens.all()
    assert after in tokens.all()


def test_what_is_not_there_cannot_be_revoked(tokens, state):
    with pytest.raises(NotFound, match="muniment token list"):
        tokens.revoke("editor")
    assert [record for record in records(state) if record.kind == "token"] == []


@pytest.mark.parametrize(
    "name", ["", OWNER, "a b", "-a", ".a", "a/b", "a\n", "a" * 65, "é", "a\x00", "../token", "Bearer x"]
)
def test_a_name_that_cannot_be_one_is_refused(tokens, name):
    with pytest.raises(ConfigInvalid, match="cannot name a token"):
        tokens.add(name, ["editor-1"], Trust.AGENT)
    assert tokens.all() == ()


@pytest.mark.parametrize("each", ["", "a b", "-a", "a,b", "a/b", "a\n", "a" * 129, "é", 'a"', "a\r\nX: y"])
def test_an_id_that_cannot_be_one_is_refused(tokens, each):
    with pytest.raises(ConfigInvalid, match="cannot be a client id"):
        tokens.add("editor", ["editor-1", each], Trust.AGENT)
    assert tokens.all() == ()


def test_of_many_who_take_one_name_or_one_id_at_once_one_has_it(tmp_path):
    barrier, outcomes = threading.Barrier(6), []

    def take(number):
        with State(tmp_path / "state") as state:
            barrier.wait()
            try:
                outcomes.append(Tokens(state).add(f"name-{number % 2}", ["shared"], Trust.AGENT))
            except ConfigInvalid:
                outcomes.append(None)

    with State(tmp_path / "state"):
        threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(outcomes) == 6
    assert len([each for each in outcomes if each is not None]) == 1


# -- K3: comparing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "x",
        OWNERS[:-1],
        OWNERS + "o",
        OWNERS.upper(),
        f" {OWNERS}",
        f"{OWNERS}\n",
        f"{OWNERS}\x00",
        "o" * 128,
        "o" * 1_000_000,
        "\u00e9" * 43,
        "\uff4f" * 43,
        "' OR 1=1 --" + "o" * 40,
        "%" * 43,
    ],
)
def test_what_is_not_exactly_a_token_is_nobodys(tokens, sent):
    tokens.add("editor", ["editor-1"], Trust.AGENT)
    assert tokens.principal(sent, OWNERS) is None


def test_tokens_are_compared_by_digests_of_one_length_in_constant_time(tokens, monkeypatch):
    compared = []
    monkeypatch.setattr(subject.hmac, "compare_digest", lambda *both: compared.append(both) or real(*both))
    token = tokens.add("editor", ["editor-1"], Trust.AGENT)
    for sent in (token, OWNERS, "x" * 43):
        tokens.principal(sent, OWNERS)
    assert len(compared) == 4
    assert {len(each) for both in compared for each in both} == {64}


real = hmac.compare_digest


def test_a_row_whose_digest_is_another_one_is_believed_by_nobody(tokens, state, monkeypatch):
    """Should the ledger's own comparison be laxer than bytes: the digest is compared once more."""
    tokens.add("editor", ["editor-1"], Trust.AGENT)
    rows = state.ledger.rows("SELECT name, trust, clients, digest FROM token")
    monkeypatch.setattr(tokens, "_reads", type("Lax", (), {"rows": lambda *_: rows}))
    assert tokens.principal("x" * 43, OWNERS) is None


def test_a_token_of_another_state_directory_is_nobodys(tokens, tmp_path):
    with State(tmp_path / "other") as other:
        token = Tokens(other).add("editor", ["editor-1"], Trust.AGENT)
    tokens.add("editor", ["editor-1"], Trust.AGENT)
    assert tokens.principal(token, OWNERS) is None


def test_a_ledger_that_was_copied_beside_another_key_knows_no_token(tmp_path):
    """A backup that somebody else restores gives nobody access."""
    with State(tmp_path / "state") as state:
        token = Tokens(state).add("editor", ["editor-1"], Trust.AGENT)
        path = state.ledger.path
    with State(tmp_path / "other") as other:
        place = other.ledger.path
    for companion in COMPANIONS:
        place.with_name(place.name + companion).unlink(missing_ok=True)
    place.write_bytes(path.read_bytes())
    with State(tmp_path / "other") as other:
        assert [each.name for each in Tokens(other).all()] == ["editor"]
        assert Tokens(other).principal(token, OWNERS) is None
