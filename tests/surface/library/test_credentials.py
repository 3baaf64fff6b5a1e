"""The key: which source wins, what is none, and that nothing that is said ever holds it."""

from __future__ import annotations

import os
import threading
import traceback
from pathlib import Path

import pytest

from muniment.errors import ConfigInvalid
from muniment.settings import MAX_KEY_BYTES, read_api_key, read_settings

CANARY = "sk-canary-7f3a"


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def key_of(home):
    """The key that a program with this environment and these flags would use."""

    def key_of(environment=None, **flags):
        whole = {"MUNIMENT_HOME": str(home), **(environment or {})}
        before = dict(whole)
        try:
            return read_api_key(read_settings(whole, model="some-model", **flags), whole)
        finally:
            assert whole == before

    return key_of


@pytest.fixture
def refused(key_of):
    """What is told of a key that is none; nothing of it is shown, nor would be by a traceback."""

    def refused(environment=None, *, by_any=True, **flags):
        with pytest.raises(ConfigInvalid) as caught:
            key_of(environment, **flags)
        chain = [caught.value]
        while by_any and (chain[-1].__cause__ or chain[-1].__context__):
            chain.append(chain[-1].__cause__ or chain[-1].__context__)
        assert "canary" not in "".join([*map(repr, chain), *traceback.format_exception(caught.value)])
        return str(caught.value)

    return refused


def key_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_the_flag_beats_the_variable_and_that_the_files_of_environment_and_configuration(
    home, tmp_path, key_of
):
    flag, named, configured = (key_file(tmp_path / name, name) for name in ("flag", "named", "configured"))
    assert key_of() is None
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "API_KEY", "muniment_api_key"):
        assert key_of({name: CANARY}) is None  # That of another program.
    (home / "config.toml").write_text(f'api_key_file = "{configured}"\n')
    assert key_of() == key_of({"MUNIMENT_API_KEY": "", "MUNIMENT_API_KEY_FILE": ""}) == "configured"
    environment = {"MUNIMENT_API_KEY_FILE": named}
    assert key_of(environment) == key_of(environment | {"MUNIMENT_API_KEY": ""}, api_key_file="") == "named"
    environment["MUNIMENT_API_KEY"] = "variable"
    assert key_of(environment) == key_of({"MUNIMENT_API_KEY": "variable"}) == "variable"
    assert key_of(environment, api_key_file=flag) == key_of(environment, api_key_file=Path(flag)) == "flag"
    settings = read_settings(environment | {"MUNIMENT_API_KEY": CANARY, "HOME": str(home)})
    assert (CANARY in repr(settings), named in repr(settings)) == (False, True)


def test_white_space_around_a_key_is_no_part_of_it(tmp_path, key_of):
    for text in ("k", f"  {CANARY}\r\n", f"\n\t{CANARY}", "!~" * 2000, " " * 4000 + CANARY):
        assert key_of({"MUNIMENT_API_KEY": text}) == text.strip()
        assert key_of(api_key_file=key_file(tmp_path / "key", text)) == text.strip()


NO_KEYS = {
    b" \n": "is empty",
    **{f"{CANARY}{text}".encode(): "holds no key" for text in (" x", "\x00", "\x7f", "\x1b[2J", "é")},
    f"KEY=1\n{CANARY}".encode(): "holds no key",
    f"\ufeff{CANARY}".encode(): "holds no key",
    CANARY.encode() + b"\xff": "holds no key",
    CANARY.encode("utf-16"): "holds no key",
    f"{CANARY}{'x' * MAX_KEY_BYTES}".encode(): f"is longer than {MAX_KEY_BYTES} bytes",
    f"{CANARY}{' ' * MAX_KEY_BYTES}".encode(): f"is longer than {MAX_KEY_BYTES} bytes",
}


@pytest.mark.threat("T-LEAK-09", control="quiet_key")
def test_what_is_no_key_is_told_and_not_shown(tmp_path, refused):
    for content, words in {b"": "is empty", **NO_KEYS}.items():
        path = key_file(tmp_path / "file", content)
        assert f"the key file {path} {words}" in refused(api_key_file=path)
        if content:
            told = refused({"MUNIMENT_API_KEY": os.fsdecode(content)})
            assert told.startswith(f"MUNIMENT_API_KEY {words}")
    assert refused(api_key_file=str(tmp_path)) == f"the key file {tmp_path} cannot be read: Is a directory"
    assert "longer than" in refused(api_key_file="/dev/zero")


def test_a_key_that_was_given_for_the_name_of_a_file_is_not_repeated(tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key in (CANARY, f"{CANARY}/x", f"{CANARY}{'x' * 400}"):
        for given in ({"api_key_file": key}, {"environment": {"MUNIMENT_API_KEY_FILE": key}}):
            assert "take the path of a file that holds the key" in refused(by_any=False, **given)


def test_a_key_comes_through_a_fifo_in_pieces_and_through_an_open_descriptor(tmp_path, key_of):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def write():
        with fifo.open("wb", buffering=0) as pipe:
            pipe.write(CANARY[:5].encode())
            pipe.write(f"{CANARY[5:]}\n".encode())

    writer = threading.Thread(target=write)
    writer.start()
    assert key_of(api_key_file=fifo) == CANARY
    writer.join()
    reading, writing = os.pipe()
    os.write(writing, CANARY.encode())
    os.close(writing)
    assert key_of(api_key_file=f"/dev/fd/{reading}") == CANARY
    os.close(reading)
