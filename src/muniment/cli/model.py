"""The options that name a model, and the key out of the environment once it has been read."""

from __future__ import annotations

import os
from typing import NotRequired, TypedDict

from muniment.settings import KEY_VARIABLE


class ModelFlags(TypedDict):
    """What a command line says of its model; None where it does not. As flags for `read_settings`."""

    model: str | None
    base_url: str | None
    api_key_file: str | None
    protocol: str | None
    on_model_failure: NotRequired[str | None]


def forget_key() -> None:
    """Take the key out of the environment, so that no process that is started from now on inherits it.

    The program owns its environment; the library does not, and leaves that of its caller alone.
    """
    os.environ.pop(KEY_VARIABLE, None)
