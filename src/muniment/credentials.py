"""The key of a model's server: where it is read, and that nobody else is told.

- K1. The first of these that is given: `--api-key-file`, `MUNIMENT_API_KEY`, `MUNIMENT_API_KEY_FILE`,
  `api_key_file` in `config.toml`. `settings.py` decides which; the variables of other programs, such as
  `OPENAI_API_KEY`, are never read.
- K2. It goes from `read_api_key` to the adapter of the model and nowhere else: settings know where it stands,
  not what it is, and no error here quotes it, also not where someone gave a key in place of a file's name.
- K3. No bound root lies around the file of the settings, also where the variable wins (`Settings.apart`).
- K4. A file that another user owns or may write is no key of ours: who knows it reads along at the server.

Does not hold: that others cannot read the file; nor that the key is gone
from the memory of this process after use, or from `/proc/PID/environ` if it came as a variable.

Attacked in tests/test_credentials.py.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from muniment.confine.binding import check_ours
from muniment.errors import ConfigInvalid
from muniment.settings import KEY_VARIABLE, Settings

MAX_KEY_BYTES: Final = 4096
"""Bytes of a key with the white space around it. API keys have 20 to 200, signed tokens seldom over 2000."""

_KEY: Final = re.compile(r"[!-~]+")
"""What an HTTP header carries as it is: printable ASCII, in one piece."""


def read_api_key(settings: Settings, environment: Mapping[str, str]) -> str | None:
    """The key that `settings` point to, without the white space around it; None if they name none.

    The file may be anything that ends: also a FIFO, such as `<(pass show key)`, which is waited for.

    Args:
        settings: as `read_settings` read them from the same environment.
        environment: such as `os.environ`; not changed.

    Raises:
        ConfigInvalid: the file cannot be read, or what was found is empty, longer than `MAX_KEY_BYTES`, or
            more than one word of printable ASCII.
    """
    if settings.key_in_variable:
        return _checked(environment[KEY_VARIABLE], KEY_VARIABLE)
    path = settings.api_key_file
    return None if path is None else _checked(_read(path), f"the key file {path}")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISCHR(status.st_mode):  # A terminal, or /dev/null, is everybody's.
                check_ours(path, status)
            data = file.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        if not os.path.lexists(path):
            # What is given for its name may be the key itself.
            raise ConfigInvalid(
                f"the key file cannot be read: {error.strerror}; --api-key-file, MUNIMENT_API_KEY_FILE and "
                "api_key_file take the path of a file that holds the key"
            ) from None
        raise ConfigInvalid(f"the key file {path} cannot be read: {error.strerror}") from None
    # Latin-1 takes every byte: an error of decoding would carry the key along as its context.
    return data.decode("latin-1")


def _checked(text: str, where: str) -> str:
    if len(text) > MAX_KEY_BYTES:
        raise ConfigInvalid(f"{where} is longer than {MAX_KEY_BYTES} bytes; put nothing but the key there")
    key = text.strip()
    if not key:
        raise ConfigInvalid(f"{where} is empty; put the key there")
    if _KEY.fullmatch(key) is None:
        raise ConfigInvalid(
            f"{where} holds no key: one is printable ASCII without white space inside; put nothing else there"
        )
    return key
