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


def key_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_the_flag_beats_the_variable_and_that_the_files_of_environment_and_configuration(
    home, tmp_path, key_of
):
    flag, named, configured = (key_file(tmp_path / name, name) for name in ("flag", "named", "configured"))
    assert key_of() is None
    (home / "config.toml").write_text(f'api_key_file = "{configured}"\n')
    assert key_of() == "configured"
    environment = {"MUNIMENT_API_KEY_FILE": named}
    assert key_of(environment) == "named"
    environment["MUNIMENT_API_KEY"] = "variable"
    assert key_of(environment) == "variable"
    assert key_of({"MUNIMENT_API_KEY": "variable"}) == "variable"
    assert key_of(environment, api_key_file=flag) == "flag"
    assert key_of(environment, api_key_file=Path(flag)) == "flag"


def test_an_empty_variable_and_an_empty_flag_are_not_given(tmp_path, key_of):
    named = key_file(tmp_path / "named", "named")
    environment = {"MUNIMENT_API_KEY": "", "MUNIMENT_API_KEY_FILE": named}
    assert key_of(environment, api_key_file="") == "named"
    assert key_of({"MUNIMENT_API_KEY": "", "MUNIMENT_API_KEY_FILE": ""}) is None


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "API_KEY", "muniment_api_key"])
def test_the_key_of_another_program_is_not_ours(key_of, name):
    assert key_of({name: CANARY}) is None


@pytest.mark.parametrize("text", ["k", f"  {CANARY}\r\n", f"\n\t{CANARY}", "!~" * 2000, " " * 4000 + CANARY])
def test_white_space_around_a_key_is_no_part_of_it(tmp_path, key_of, text):
    assert key_of({"MUNIMENT_API_KEY": text}) == text.strip()
    assert key_of(api_key_file=key_file(tmp_path / "key", text)) == text.strip()


NO_KEYS = [
    (b" \n", "is empty"),
    (f"{CANARY} x", "holds no key"),
    (f"KEY=1\n{CANARY}", "holds no key"),
    (f"{CANARY}\x00", "holds no key"),
    (f"{CANARY}\x7f", "holds no key"),
    (f"{CANARY}\x1b[2J", "holds no key"),
    (f"{CANARY}é", "holds no key"),
    (f"\ufeff{CANARY}", "holds no key"),
    (CANARY.encode() + b"\xff", "holds no key"),
    (CANARY.encode("utf-16"), "holds no key"),
    (CANARY + "x" * MAX_KEY_BYTES, f"is longer than {MAX_KEY_BYTES} bytes"),
    (CANARY + " " * MAX_KEY_BYTES, f"is longer than {MAX_KEY_BYTES} bytes"),
]


def all_that_is_told(error):
    """What the error says, and whatever a traceback of it would show."""
    chain = [error]
    while chain[-1].__cause__ or chain[-1].__context__:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    return "".join(map(repr, chain)) + "".join(traceback.format_exception(error)) + str(error)


@pytest.mark.threat("T-LEAK-09", control="quiet_key")
@pytest.mark.parametrize(("content", "words"), [(b"", "is empty"), *NO_KEYS])
def test_what_is_no_key_in_a_file_is_told_and_not_shown(tmp_path, key_of, content, words):
    path = key_file(tmp_path / "file", content)
    with pytest.raises(ConfigInvalid) as caught:
        key_of(api_key_file=path)
    assert f"the key file {path} {words}" in str(caught.value)
    assert "canary" not in all_that_is_told(caught.value)


@pytest.mark.parametrize(("content", "words"), NO_KEYS)
def test_what_is_no_key_in_the_variable_is_told_and_not_shown(key_of, content, words):
    text = content if isinstance(content, str) else os.fsdecode(content)
    with pytest.raises(ConfigInvalid) as caught:
        key_of({"MUNIMENT_API_KEY": text})
    assert str(caught.value).startswith(f"MUNIMENT_API_KEY {words}")
    assert "canary" not in all_that_is_told(caught.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path, key_of):
    with pytest.raises(ConfigInvalid) as caught:
        key_of(api_key_file=str(tmp_path))
    assert str(caught.value) == f"the key file {tmp_path} cannot be read: Is a directory"


@pytest.mark.parametrize("key", [CANARY, f"{CANARY}/x", f"{CANARY}{'x' * 400}"])
@pytest.mark.parametrize("source", ["flag", "environment"])
def test_a_key_that_was_given_for_the_name_of_a_file_is_not_repeated(
    tmp_path, key_of, monkeypatch, key, source
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigInvalid, match="take the path of a file that holds the key") as caught:
        key_of(
            **({"api_key_file": key} if source == "flag" else {"environment": {"MUNIMENT_API_KEY_FILE": key}})
        )
    assert "canary" not in str(caught.value)
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_a_key_comes_through_a_fifo_in_pieces(tmp_path, key_of):
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


def test_a_key_comes_through_an_open_descriptor(key_of):
    read, write = os.pipe()
    os.write(write, CANARY.encode())
    os.close(write)
    assert key_of(api_key_file=f"/dev/fd/{read}") == CANARY
    os.close(read)


def test_a_file_without_end_is_read_only_so_far(key_of):
    with pytest.raises(ConfigInvalid, match="longer than"):
        key_of(api_key_file="/dev/zero")


def test_settings_know_where_the_key_stands_and_not_what_it_is(home, tmp_path):
    path = key_file(tmp_path / "file", CANARY)
    environment = {"MUNIMENT_HOME": str(home), "MUNIMENT_API_KEY": CANARY, "MUNIMENT_API_KEY_FILE": path}
    settings = read_settings(environment, model="some-model")
    assert read_api_key(settings, environment) == CANARY
    assert "canary" not in repr(settings)
    assert path in repr(settings)
