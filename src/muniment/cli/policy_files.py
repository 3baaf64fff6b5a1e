"""Implement `muniment policy show`, `lock`, `sign` and `verify`: print, pin and sign policy files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muniment.cli.command import Report, command, load_settings
from muniment.cli.options import Json, PolicyArgument
from muniment.cli.terminal import EXIT_FAILED, guard_output
from muniment.content.gates import clean_foreign_line, clean_line, escape_invisible
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, PolicyInvalid, printable
from muniment.files import write_atomically

if TYPE_CHECKING:
    from muniment.kernel.decide import Layer, Policy, Quota
    from muniment.kernel.names import Digest
    from muniment.policy.files import LoadedPolicy, PolicyText


# -- policy show -------------------------------------------------------------------------------------
#
# An effective policy as text: what each layer allows and denies, and the file that each value comes from.

DEFAULT: Final = "default"
"""The origin of a value that no file of the policy contains: the value of `strict`, or a stricter one."""


def create_document(loaded: LoadedPolicy) -> dict[str, Any]:
    """Return the effective policy as a JSON document, with the file and line that each value comes from."""
    from muniment.policy.combine import SECTIONS

    policy = loaded.policy
    return {
        "label": policy.label,
        "files": [{"name": file.name, "path": str(file.path)} for file in loaded.files],
        "layers": [_create_layer(layer, loaded.files) for layer in _sort_layers(policy, loaded.files)],
        "scopes": [_create_scope(policy, index, loaded.files) for index in range(len(policy.scopes))],
        "quotas": [_create_quota(quota, loaded.files) for quota in policy.quotas],
        "terms": [
            _create_setting(section, key, value, loaded.files)
            for section in SECTIONS
            for key, value in asdict(getattr(policy, section)).items()
        ],
    }


def format_policy(policy: Policy, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text lines of an effective policy.

    Args:
        policy: the policy.
        document: the result of `create_document` for this policy.
    """
    yield f"{document['label']}  {policy.digest}"
    for file in document["files"]:
        yield f"  {file['name']:12}  {file['path']}"
    for layer in document["layers"]:
        yield f"layer {layer['name']}: every layer must allow a request"
        for kind in ("allow", "deny"):
            for rule in layer[kind]:
                location = _format_location(layer["name"], rule["line"])
                yield f"  {kind:5}  {rule['id']}: {' '.join(rule['verbs'])}{location}"
                yield f"         {'  '.join(rule['paths'])}"
                if rule["why"]:
                    yield f"         # {clean_line(rule['why'])}"
    yield "scopes"
    yield from _format_table(_create_scope_row(each) for each in document["scopes"])
    yield "quotas for each scope"
    yield from _format_table(_create_quota_row(each) for each in document["quotas"])
    yield "settings"
    yield from _format_table(
        [
            f"  {term['key']}",
            _format_value(term["value"]),
            f"({term['from']}{_format_location('', term['line'])})",
        ]
        for term in document["terms"]
    )


def _create_scope_row(scope: dict[str, Any]) -> list[str]:
    trust = f"trust {scope['trust']} ({scope['trust_from']})"
    return [f"  {scope['name']}", trust, f"commit {scope['commit']} ({scope['commit_from']})"]


def _create_quota_row(quota: dict[str, Any]) -> list[str]:
    return [
        f"  {quota['id']}",
        " ".join(quota["paths"]),
        f"{quota['max_file_bytes']} bytes a file",
        f"{quota['max_files']} files",
        f"{quota['max_total_bytes']} bytes",
        f"({quota['from']}{_format_location('', quota['line'])})",
    ]


def _sort_layers(policy: Policy, files: tuple[PolicyText, ...]) -> list[Layer]:
    layers = {layer.name: layer for layer in policy.layers}
    return [layers[file.name] for file in files]


def _create_layer(layer: Layer, files: tuple[PolicyText, ...]) -> dict[str, Any]:
    from muniment.policy.tables import find_line

    (file,) = (each for each in files if each.name == layer.name)
    layer_document: dict[str, Any] = {"name": layer.name, "path": str(file.path)}
    for kind in ("allow", "deny"):
        why = {table.id: table.why for table in getattr(file.tables, kind)}
        layer_document[kind] = [
            {**asdict(rule), "why": why[rule.id], "line": find_line(file.text, kind, rule.id)}
            for rule in getattr(layer, kind)
        ]
    return layer_document


def _create_scope(policy: Policy, index: int, files: tuple[PolicyText, ...]) -> dict[str, Any]:
    scope_options = policy.scope_options[index]
    scope_document: dict[str, Any] = {"name": scope_options.name}
    for key in ("trust", "commit"):
        value = getattr(scope_options, key)
        tables = [(file, (file.tables.scopes or {}).get(scope_options.name)) for file in files]
        sources = [
            file.name
            for file, table in tables
            if table is not None and key in table.model_fields_set and getattr(table, key) == value
        ]
        scope_document |= {key: value, f"{key}_from": next(iter(sources), DEFAULT)}
    return scope_document


def _create_quota(quota: Quota, files: tuple[PolicyText, ...]) -> dict[str, Any]:
    from muniment.policy.tables import build_quota, find_line

    for file in files:
        for table in file.tables.quota:
            if build_quota(table) == quota:
                return {**asdict(quota), "from": file.name, "line": find_line(file.text, "quota", quota.id)}
    return {**asdict(quota), "from": DEFAULT, "line": None}


def _create_setting(section: str, key: str, value: object, files: tuple[PolicyText, ...]) -> dict[str, Any]:
    """Return the value of a setting, with the first file of the policy that contains it.

    If the value is a list that was merged from several files, all of them are named.

    Args:
        section: the section of the setting in a policy file.
        key: the name of the setting.
        value: its effective value.
        files: the files of the policy and of those that it extends.
    """
    from muniment.policy.tables import find_line

    sources = []
    for file in files:
        table = getattr(file.tables, section)
        file_value = getattr(table, key) if key in table.model_fields_set else None
        if file_value == value or (
            isinstance(value, tuple) and file_value and tuple(sorted(file_value)) == value
        ):
            return {
                "key": f"{section}.{key}",
                "value": value,
                "from": file.name,
                "line": find_line(file.text, section, None, key),
            }
        if isinstance(value, tuple) and file_value:
            sources.append(file.name)
    return {"key": f"{section}.{key}", "value": value, "from": ", ".join(sources) or DEFAULT, "line": None}


def _format_value(value: object) -> str:
    return (" ".join(value) or "none") if isinstance(value, tuple) else str(value)


def _format_location(name: str, line: int | None) -> str:
    return "" if line is None else f"  ({name}:{line})" if name else f":{line}"


def _format_table(rows: Iterable[list[str]]) -> Iterator[str]:
    row_list = list(rows)
    widths = [max(map(len, column)) for column in zip(*row_list, strict=True)]
    for row in row_list:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


# -- policy files ------------------------------------------------------------------------------------
#
# `muniment policy lock`, `sign`, `verify` and `show`: print, pin and sign policy files.

_DIGEST_CHARS = 8
"""Characters of a digest in the text output."""


@command("not shown")
def policy_show(
    *,
    policy: PolicyArgument,
    effective: Annotated[
        bool, typer.Option("--effective", help="Print the effective policy, with the file of each value.")
    ] = False,
    normal: Annotated[
        bool, typer.Option("--normal", help="Print the normal form: the text whose SHA-256 is the digest.")
    ] = False,
    json: Json = False,
) -> Report | None:
    """Print a policy."""
    if effective and normal:
        raise typer.BadParameter("use either --effective or --normal")
    loaded = _load(policy)
    if effective:
        effective_document = {**_create_policy_members(loaded), **create_document(loaded)}
        return Report(
            effective_document, map(escape_invisible, format_policy(loaded.policy, effective_document))
        )
    if not normal:
        text = loaded.files[0].text
        return Report(
            {**_create_policy_members(loaded), "text": text}, map(escape_invisible, text.splitlines())
        )
    if json:
        return Report({**_create_policy_members(loaded), "normal": loaded.policy.text})
    with guard_output():  # All characters of the normal form are printable.
        sys.stdout.buffer.write(loaded.policy.text.encode())
    return None


@command("not locked")
def policy_lock(
    *,
    folder: Annotated[Path, typer.Argument(help="The folder of the policies.")] = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if the lock is stale.")
    ] = False,
) -> Report:
    """Pin the policies of a folder to their digests."""
    from muniment.policy.family import render_lock
    from muniment.policy.files import LOCK_NAME

    path = folder / LOCK_NAME
    old = _read_old_lock(path, check=check)
    digests, skipped = _compute_digests(folder)
    is_current = old == digests
    if not check and not is_current:
        _write(path, render_lock(digests).encode())
    changes = _compare_digests(old or {}, digests)
    return Report(
        {
            "status": "locked" if not check else "current" if is_current else "stale",
            "lock": str(path),
            "policies": dict(sorted(digests.items())),
            "changes": [{"name": name, "old": was, "new": now} for name, (was, now) in changes.items()],
            "skipped": skipped,
        },
        [
            *(clean_foreign_line(f"skipped {name}: not a policy") for name in skipped),
            *_format_changes(changes),
            clean_foreign_line(_format_verdict(path, len(digests), check=check, is_current=is_current)),
        ],
        code=EXIT_FAILED if check and not is_current else 0,
    )


@command("not signed")
def policy_sign(
    *,
    policy: PolicyArgument,
    key: Annotated[Path, typer.Option(metavar="FILE", help="A private key for ssh-keygen.")],
) -> Report:
    """Sign a policy with ssh-keygen, into a file next to it."""
    from muniment.policy.signatures import build_statement, get_signature_path, sign

    loaded = _load(policy)
    path = get_signature_path(loaded.files[0])
    _write(path, sign(build_statement(loaded.policy), key))
    document = {"status": "signed", **_create_policy_members(loaded), "signature": str(path)}
    return Report(document, [clean_foreign_line(f"signed {loaded.policy.label}: {path}")])


@command("not verified")
def policy_verify(
    *,
    policy: PolicyArgument,
    signers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of allowed signers, see ALLOWED SIGNERS in ssh-keygen(1).",
            show_default="as configured",
        ),
    ] = None,
) -> Report:
    """Verify the signature of a policy, and show its signer."""
    from muniment.policy.signatures import verify_policy

    allowed = signers or load_settings().policy_signers
    if allowed is None:
        raise ConfigInvalid("no allowed signers are configured; set policy_signers, or use --signers FILE")
    loaded = _load(policy)
    signer = verify_policy(loaded, allowed)
    document = {"status": "verified", **_create_policy_members(loaded), "signer": signer}
    return Report(document, [clean_foreign_line(f"{loaded.policy.label} is signed by {signer}")])


def _load(policy: str) -> LoadedPolicy:
    from muniment.policy.load import load_files

    return load_files(policy, policies_dir=load_settings().policies)


def _create_policy_members(loaded: LoadedPolicy) -> dict[str, Any]:
    """Return the members by which every JSON document names the policy: name, path and digest."""
    return {"name": loaded.policy.name, "path": str(loaded.files[0].path), "digest": loaded.policy.digest}


def _read_old_lock(path: Path, *, check: bool) -> dict[str, Digest] | None:
    """Read the existing lock file; return None if it is missing, or invalid and to be replaced.

    Args:
        path: path of the lock file.
        check: whether the lock is only compared; an invalid lock then raises `PolicyInvalid`.
    """
    from muniment.policy.family import read_lock

    try:
        return read_lock(path)
    except PolicyInvalid:
        if check:
            raise
        return None


def _compare_digests(
    old: Mapping[str, Digest], new: Mapping[str, Digest]
) -> dict[str, tuple[Digest | None, Digest | None]]:
    names = sorted({*old, *new})
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _compute_digests(folder: Path) -> tuple[dict[str, Digest], list[str]]:
    """Compute the digest of each policy in a folder.

    Returns:
        The digests by the names of the policies, and the names of TOML files that are not policies.

    Raises:
        ConfigInvalid: the folder does not exist.
        PolicyInvalid: a policy is invalid, or two policies have the same name.
    """
    from muniment.policy.load import load_files

    if not folder.is_dir():
        raise ConfigInvalid(f"{printable(str(folder))} is not a folder; give the folder of the policies")
    digests: dict[str, Digest] = {}
    skipped = []
    policies_dir = load_settings().policies
    for path in sorted(folder.glob("*.toml")):
        if not _is_policy(path):
            skipped.append(path.name)
            continue
        policy = load_files(str(path), policies_dir=policies_dir, unlocked=folder).policy
        if policy.name in digests:
            problem = f"another file of the folder also has the name {policy.name!r}; rename one"
            raise PolicyInvalid("E124", printable(str(path)), problem)
        digests[policy.name] = policy.digest
    return digests, skipped


def _is_policy(path: Path) -> bool:
    from muniment.policy.files import parse_toml, read_text

    read = read_text(path)
    if read is None:
        raise PolicyInvalid("E100", printable(str(path)), "is a broken link; repair or remove it")
    schema = parse_toml(read[0], printable(str(path))).get("schema")
    return isinstance(schema, str) and schema.startswith("muniment-policy/")


def _format_changes(changes: Mapping[str, tuple[Digest | None, Digest | None]]) -> Iterator[str]:
    width = max(map(len, changes), default=0)
    for name, (old, new) in changes.items():
        was, now = (f"{digest[:_DIGEST_CHARS]}…" if digest else "—" for digest in (old, new))
        yield f"  {name:{width}}  {was:9} → {now}"


def _format_verdict(path: Path, count: int, *, check: bool, is_current: bool) -> str:
    policies = "1 policy" if count == 1 else f"{count} policies"
    if not check:
        return f"locked {policies}{', unchanged' if is_current else ''}: {path}"
    if is_current:
        return f"{path} is current: {policies}"
    return f"{path} is not current; check the changes, then run: muniment policy lock {path.parent}"


def _write(path: Path, content: bytes) -> None:
    """Write a file completely, or leave the old file unchanged.

    Raises:
        ManagedMemoryUnavailable: the file cannot be written.
    """
    try:
        with write_atomically(path, os.replace, 0o644) as file:
            file.write(content)
    except OSError as error:
        raise ManagedMemoryUnavailable(
            printable(str(path)), f"cannot be written ({error.strerror}); correct the folder's permissions"
        ) from error
