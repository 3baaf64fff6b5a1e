"""`muniment policy lock`, `sign`, `verify` and `show`: policies as files that people keep, pin and sign."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from muniment.cli.policy_show import document, lines
from muniment.cli.report import (
    EXIT_FAILED,
    configure_logging,
    on_one_line,
    print_document,
    print_failure,
    say,
)
from muniment.content.gates import visible
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, MunimentError, PolicyInvalid, printable
from muniment.names import Digest
from muniment.policy.family import LOCK_NAME, parse_toml, read_lock, read_text, render_lock
from muniment.policy.load import Loaded, load_files
from muniment.settings import read_settings
from muniment.signatures import sign as signature_of
from muniment.signatures import signature_path, statement, verify_policy

_SHOWN_CHARS = 8
"""Characters of a digest on a line, as in a label."""


def lock(folder: Path, *, check: bool, as_json: bool) -> int:
    """Write the lock of a folder's policies; the exit code.

    Args:
        folder: where the policies lie.
        check: write nothing, and say by the exit code whether the lock is current.
        as_json: one document instead of lines.
    """
    configure_logging()
    path = folder / LOCK_NAME
    try:
        old = _old_lock(path, check=check)
        digests, skipped = _digests(folder)
        is_current = old == digests
        if not check and not is_current:
            _write(path, render_lock(digests).encode())
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not locked")
    changes = _changes(old or {}, digests)
    if as_json:
        print_document(
            {
                "status": "locked" if not check else "current" if is_current else "stale",
                "lock": str(path),
                "policies": dict(sorted(digests.items())),
                "changes": [{"name": name, "old": was, "new": now} for name, (was, now) in changes.items()],
                "skipped": skipped,
            }
        )
    else:
        for name in skipped:
            say(on_one_line(f"skipped {name}: it is no policy"))
        for line in _change_lines(changes):
            say(line)
        say(on_one_line(_verdict(path, len(digests), check=check, is_current=is_current)))
    return EXIT_FAILED if check and not is_current else 0


def sign(policy: str, key: Path, *, as_json: bool) -> int:
    """Sign a policy, and write the signature beside its file; the exit code.

    Args:
        policy: its name or path.
        key: a private key for ssh-keygen, or the public one of a key that an agent holds.
        as_json: one document instead of a line.
    """
    configure_logging()
    try:
        loaded = _loaded(policy)
        path = signature_path(loaded.files[0])
        _write(path, signature_of(statement(loaded.policy), key))
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not signed")
    if as_json:
        print_document({"status": "signed", **_named(loaded), "signature": str(path)})
    else:
        say(on_one_line(f"signed {loaded.policy.label}: {path}"))
    return 0


def verify(policy: str, signers: Path | None, *, as_json: bool) -> int:
    """Say who has signed a policy; the exit code.

    Args:
        policy: its name or path.
        signers: a file of allowed signers; None: the configured one.
        as_json: one document instead of a line.
    """
    configure_logging()
    try:
        allowed = signers or read_settings(os.environ).policy_signers
        if allowed is None:
            raise ConfigInvalid(
                "nobody may sign policies here; set policy_signers, or name a file: --signers FILE"
            )
        loaded = _loaded(policy)
        signer = verify_policy(loaded, allowed)
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not verified")
    if as_json:
        print_document({"status": "verified", **_named(loaded), "signer": signer})
    else:
        say(on_one_line(f"{loaded.policy.label} is signed by {signer}"))
    return 0


def show(policy: str, *, effective: bool, as_json: bool) -> int:
    """Show a policy: its file as it stands, or what it comes to with all that it extends; the exit code.

    Args:
        policy: its name or path.
        effective: show what it comes to, and which file says so.
        as_json: one document instead of text.
    """
    configure_logging()
    try:
        loaded = _loaded(policy)
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not shown")
    if effective and as_json:
        print_document({**_named(loaded), **document(loaded)})
    elif effective:
        for line in lines(loaded):
            say(visible(line))
    elif as_json:
        print_document({**_named(loaded), "text": loaded.files[0].text})
    else:
        for line in loaded.files[0].text.splitlines():
            say(visible(line))
    return 0


def _loaded(policy: str) -> Loaded:
    return load_files(policy, policies_dir=read_settings(os.environ).policies)


def _named(loaded: Loaded) -> dict[str, Any]:
    """What every document says of its policy."""
    return {
        "name": loaded.policy.name,
        "path": str(loaded.files[0].path),
        "digest": loaded.policy.digest,
    }


def _old_lock(path: Path, *, check: bool) -> dict[str, Digest] | None:
    """What is locked so far. One who writes a new lock need not be able to read the old one."""
    try:
        return read_lock(path)
    except PolicyInvalid:
        if check:
            raise
        return None


def _changes(
    old: Mapping[str, Digest], new: Mapping[str, Digest]
) -> dict[str, tuple[Digest | None, Digest | None]]:
    names = sorted({*old, *new})
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _digests(folder: Path) -> tuple[dict[str, Digest], list[str]]:
    """The digest of every policy in a folder by its name, and the TOML files that are none."""
    if not folder.is_dir():
        raise ConfigInvalid(f"{printable(str(folder))} is no folder; name the one that holds the policies")
    digests: dict[str, Digest] = {}
    skipped = []
    policies_dir = read_settings(os.environ).policies
    for path in sorted(folder.glob("*.toml")):
        if not _is_policy(path):
            skipped.append(path.name)
            continue
        policy = load_files(str(path), policies_dir=policies_dir, unlocked=folder).policy
        if policy.name in digests:
            problem = f"another file of the folder calls itself {policy.name!r} too; rename one"
            raise PolicyInvalid("E124", printable(str(path)), problem)
        digests[policy.name] = policy.digest
    return digests, skipped


def _is_policy(path: Path) -> bool:
    read = read_text(path)
    if read is None:
        raise PolicyInvalid(
            "E100", printable(str(path)), "there is no such file; it is a link that leads nowhere"
        )
    schema = parse_toml(read[0], printable(str(path))).get("schema")
    return isinstance(schema, str) and schema.startswith("muniment-policy/")


def _change_lines(changes: Mapping[str, tuple[Digest | None, Digest | None]]) -> Iterator[str]:
    width = max(map(len, changes), default=0)
    for name, (old, new) in changes.items():
        was, now = (f"{digest[:_SHOWN_CHARS]}…" if digest else "—" for digest in (old, new))
        yield f"  {name:{width}}  {was:9} → {now}"


def _verdict(path: Path, count: int, *, check: bool, is_current: bool) -> str:
    policies = "1 policy" if count == 1 else f"{count} policies"
    if not check:
        return f"locked {policies}{', as before' if is_current else ''}: {path}"
    if is_current:
        return f"{path} is current: {policies}"
    return f"{path} is not current; look at what changed, then run: muniment policy lock {path.parent}"


def _write(path: Path, content: bytes) -> None:
    """Put a file in its place entirely or not at all."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(unfinished, flags, 0o644), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)  # noqa: PTH105  beside os.open and os.fsync
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise ManagedMemoryUnavailable(
            printable(str(path)), f"cannot be written ({error.strerror}); correct the folder's permissions"
        ) from error
