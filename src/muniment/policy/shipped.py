"""Load policies, and shipped ones from their normal form, without compiling their TOML again.

`policies/normal_forms.json` contains the normal form of each shipped policy. To update it:

    python -m muniment.policy.shipped > policies/normal_forms.json

    1. A form is used only if every file that it was generated from, and the lock of these files, have the
       same SHA-256 as at that time, and the lock contains the digest of the form.
    2. A form is used only for the name of a shipped policy, and only if the folder of the user's policies
       has no file with the name of a file of the policy.
    3. In every other case `load` compiles the TOML, and reports what is invalid.

So a form is as trusted as the code of this package, and a change to any one file cannot weaken a policy.

Cost: 2 ms; compiling a shipped policy takes 130 ms with its imports.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from muniment.errors import PolicyInvalid
from muniment.kernel.decide import parse
from muniment.policy.files import LOCK_NAME, LoadedPolicy, get_shipped_folder, read_policy_text, read_text

FORMS_NAME: Final = "normal_forms.json"
"""Name of the file with the normal forms of the shipped policies, in their folder."""


def load_policy_files(name_or_path: str, policies_dir: Path | None) -> LoadedPolicy:
    """Load a policy with its files, as `load.load_files` does, but a shipped one from its normal form.

    Args:
        name_or_path: as for `load.load_files`.
        policies_dir: the folder of the user's policies; None: no folder.

    Raises:
        PolicyInvalid: the policy is invalid; the error is about the first problem.
    """
    try:
        loaded = _load_form(name_or_path, policies_dir)
    except (PolicyInvalid, RecursionError, ValueError):
        loaded = None  # The compilation reports a problem of the policy files.
    if loaded is not None:
        return loaded
    from muniment.policy.load import load_files

    return load_files(name_or_path, policies_dir=policies_dir)


def _load_form(name: str, policies_dir: Path | None) -> LoadedPolicy | None:
    """Return a shipped policy from its normal form, or None if the form must not be used.

    Raises:
        PolicyInvalid: a file cannot be read, or the form is invalid.
        RecursionError, ValueError: the file of normal forms is not JSON.
    """
    folder = get_shipped_folder()
    document, lock = read_text(folder / FORMS_NAME), read_text(folder / LOCK_NAME)
    if document is None or lock is None:
        return None
    forms = json.loads(document.text)
    match forms.get(name) if isinstance(forms, dict) else None:
        case {"files": {**hashes}, "lock": lock_hash, "scopes": [*scopes], "form": [*lines]} if (
            name in hashes
        ):
            pass
        case _:
            return None
    files = tuple(
        file for each in hashes if (file := read_policy_text(folder / f"{each}.toml", str(each))) is not None
    )
    found = {file.where: _compute_hash(file.text) for file in files if file.is_shipped}
    if (found, _compute_hash(lock.text)) != (hashes, lock_hash) or _has_own_file(policies_dir, hashes):
        return None
    policy = parse("\n".join(map(str, lines)), name)
    is_locked = f'{name} = "{policy.digest}"' in lock.text.splitlines()
    if not is_locked or {*map(str, scopes)} != {*policy.scopes}:
        return None
    ordered = tuple(sorted(policy.scope_options, key=lambda options: scopes.index(options.name)))
    return LoadedPolicy(replace(policy, scope_options=ordered), files, (lock.folder / LOCK_NAME,))


def _has_own_file(policies_dir: Path | None, names: Iterable[object]) -> bool:
    """Return whether the folder of the user's policies has a file with one of the names."""
    return policies_dir is not None and any(
        read_text(policies_dir / f"{each}.toml") is not None for each in names
    )


def _compute_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def render_forms() -> str:
    """Return the content of `policies/normal_forms.json`, compiled from the shipped policies.

    Raises:
        PolicyInvalid: a shipped policy is invalid.
    """
    from muniment.policy.family import read_lock
    from muniment.policy.load import load_files

    path = get_shipped_folder() / LOCK_NAME
    lock = read_text(path)
    forms = {}
    for name in sorted(read_lock(path) or ()):
        loaded = load_files(name)
        forms[name] = {
            "files": {file.name: _compute_hash(file.text) for file in loaded.files},
            "lock": lock and _compute_hash(lock.text),
            "scopes": loaded.policy.scopes,
            "form": loaded.policy.text.split("\n"),
        }
    return json.dumps(forms, indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_forms())
