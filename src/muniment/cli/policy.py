"""`muniment policy`: policies shown, kept, pinned, signed, reviewed and compared."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from muniment.cli.terminal import (
    EXIT_FAILED,
    coloured,
    configure_logging,
    on_one_line,
    output,
    print_document,
    print_failure,
    read_named,
    say,
)
from muniment.content.gates import one_line, visible
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, MunimentError, PolicyInvalid, printable
from muniment.kernel.decide import NO_GRANT, Layer, Policy, Quota
from muniment.kernel.names import Digest
from muniment.lab import proofs
from muniment.lab.explain import Explanation
from muniment.lab.explain import explain as explanation_of
from muniment.lab.proofs import Cause, Difference, Gain, Mutant, mutants
from muniment.lab.proofs import diff as difference_of
from muniment.lab.review import LintFinding
from muniment.lab.review import lint as findings_of
from muniment.policy.family import LOCK_NAME, PolicyText, parse_toml, read_lock, read_text, render_lock
from muniment.policy.load import ACTS, Act, Loaded, failed_tests, load_files
from muniment.policy.tables import SECTIONS, is_path, line_of, quota_of
from muniment.settings import read_settings
from muniment.signatures import sign as signature_of
from muniment.signatures import signature_path, statement, verify_policy

# -- policy show -------------------------------------------------------------------------------------
#
# An effective policy for people: what each layer grants and denies, and which file each value comes from.

DEFAULT: Final = "default"
"""What no file says; the value is the one of `strict`, or stricter."""


def document(loaded: Loaded) -> dict[str, Any]:
    """The effective policy, with the origin of everything in it."""
    policy = loaded.policy
    return {
        "label": policy.label,
        "files": [{"name": file.name, "path": str(file.path)} for file in loaded.files],
        "layers": [_layer(layer, loaded.files) for layer in _in_order(policy, loaded.files)],
        "scopes": [_scope(policy, index, loaded.files) for index in range(len(policy.scopes))],
        "quotas": [_quota(quota, loaded.files) for quota in policy.quotas],
        "terms": [
            _term(section, key, value, loaded.files)
            for section in SECTIONS
            for key, value in asdict(getattr(policy, section)).items()
        ],
    }


def lines(loaded: Loaded) -> Iterator[str]:
    """The same as text."""
    shown = document(loaded)
    yield f"{shown['label']}  {loaded.policy.digest}"
    for file in shown["files"]:
        yield f"  {file['name']:12}  {file['path']}"
    for layer in shown["layers"]:
        yield f"layer {layer['name']}: every layer has to grant"
        for kind in ("allow", "deny"):
            for rule in layer[kind]:
                yield f"  {kind:5}  {rule['id']}: {' '.join(rule['verbs'])}{_at(layer['name'], rule['line'])}"
                yield f"         {'  '.join(rule['paths'])}"
                if rule["why"]:
                    yield f"         # {one_line(rule['why'])}"
    yield "scopes"
    yield from _table(_scope_row(each) for each in shown["scopes"])
    yield "quotas, of each scope"
    yield from _table(_quota_row(each) for each in shown["quotas"])
    yield "terms"
    yield from _table(
        [f"  {term['key']}", _text(term["value"]), f"({term['from']}{_at('', term['line'])})"]
        for term in shown["terms"]
    )


def _scope_row(scope: dict[str, Any]) -> list[str]:
    trust = f"trust {scope['trust']} ({scope['trust_from']})"
    return [f"  {scope['name']}", trust, f"commit {scope['commit']} ({scope['commit_from']})"]


def _quota_row(quota: dict[str, Any]) -> list[str]:
    return [
        f"  {quota['id']}",
        " ".join(quota["paths"]),
        f"{quota['max_file_bytes']} bytes a file",
        f"{quota['max_files']} files",
        f"{quota['max_total_bytes']} bytes",
        f"({quota['from']}{_at('', quota['line'])})",
    ]


def _in_order(policy: Policy, files: tuple[PolicyText, ...]) -> list[Layer]:
    layers = {layer.name: layer for layer in policy.layers}
    return [layers[file.name] for file in files]


def _layer(layer: Layer, files: tuple[PolicyText, ...]) -> dict[str, Any]:
    (file,) = (each for each in files if each.name == layer.name)
    shown: dict[str, Any] = {"name": layer.name, "path": str(file.path)}
    for kind in ("allow", "deny"):
        why = {table.id: table.why for table in getattr(file.tables, kind)}
        shown[kind] = [
            {
                **asdict(rule),
                "why": why[rule.id],
                "line": line_of(file.text, kind, rule.id),
            }
            for rule in getattr(layer, kind)
        ]
    return shown


def _scope(policy: Policy, index: int, files: tuple[PolicyText, ...]) -> dict[str, Any]:
    terms = policy.scope_terms[index]
    shown: dict[str, Any] = {"name": terms.name}
    for key in ("trust", "commit"):
        value = getattr(terms, key)
        tables = [(file, (file.tables.scopes or {}).get(terms.name)) for file in files]
        saying = [
            file.name
            for file, table in tables
            if table is not None and key in table.model_fields_set and getattr(table, key) == value
        ]
        shown |= {key: value, f"{key}_from": next(iter(saying), DEFAULT)}
    return shown


def _quota(quota: Quota, files: tuple[PolicyText, ...]) -> dict[str, Any]:
    for file in files:
        for table in file.tables.quota:
            if quota_of(table) == quota:
                return {**asdict(quota), "from": file.name, "line": line_of(file.text, "quota", quota.id)}
    return {**asdict(quota), "from": DEFAULT, "line": None}


def _term(section: str, key: str, value: object, files: tuple[PolicyText, ...]) -> dict[str, Any]:
    """A scalar or list, and the first file that says as much; of a list, all files that add to it."""
    saying = []
    for file in files:
        table = getattr(file.tables, section)
        said = getattr(table, key) if key in table.model_fields_set else None
        if said == value or (isinstance(value, tuple) and said and tuple(sorted(said)) == value):
            return {
                "key": f"{section}.{key}",
                "value": value,
                "from": file.name,
                "line": line_of(file.text, section, None, key),
            }
        if isinstance(value, tuple) and said:
            saying.append(file.name)
    return {"key": f"{section}.{key}", "value": value, "from": ", ".join(saying) or DEFAULT, "line": None}


def _text(value: object) -> str:
    return (" ".join(value) or "none") if isinstance(value, tuple) else str(value)


def _at(name: str, line: int | None) -> str:
    return "" if line is None else f"  ({name}:{line})" if name else f":{line}"


def _table(rows: Iterable[list[str]]) -> Iterator[str]:
    kept = list(rows)
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    for row in kept:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


# -- policy files ------------------------------------------------------------------------------------
#
# `muniment policy lock`, `sign`, `verify` and `show`: policies as files that people keep, pin and sign.

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


def show(policy: str, *, effective: bool, normal: bool, as_json: bool) -> int:
    """Show a policy: its file as it stands, or what it comes to with all that it extends; the exit code.

    Args:
        policy: its name or path.
        effective: show what it comes to, and which file says so.
        normal: show what it comes to in its normal form, byte for byte what the digest is of.
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
    elif normal and as_json:
        print_document({**_named(loaded), "normal": loaded.policy.text})
    elif normal:
        with output():  # Every character of it prints.
            sys.stdout.buffer.write(loaded.policy.text.encode())
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


# -- policy review -----------------------------------------------------------------------------------
#
# `muniment policy lint`, `explain`, `test` and `prove`: what a reviewer asks about one policy.

_COLOURS: Final = {"E": "red", "W": "yellow", "I": "dim"}


def load_for_review(policy: str, *, tested: bool = True) -> Loaded:
    """The policy as it stands, whatever a lock beside it says: it may just be edited."""
    return load_files(
        policy,
        policies_dir=read_settings(os.environ).policies,
        unlocked=Path(policy).parent if is_path(policy) else None,
        tested=tested,
    )


def place_of(files: Iterable[PolicyText], layer: str, kind: str, rule: str, pattern: str | None) -> str:
    """Where a pattern of a rule stands, or the rule: `policies/strict.toml:31`, without a line if unknown."""
    for file in files:
        if file.name == layer:
            line = line_of(file.text, kind, rule, "paths", pattern) or line_of(file.text, kind, rule)
            return f"{file.where}:{line}" if line else file.where
    return layer


# -- lint -----------------------------------------------------------------------------------------


def lint(policies: Sequence[str], *, as_json: bool) -> int:
    """Say everything that is wrong with policies, or looks so; 1 if one of them is unfit."""
    configure_logging()
    try:
        folder = read_settings(os.environ).policies
        found = {policy: findings_of(policy, policies_dir=folder) for policy in policies}
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not examined")
    errors = sum(each.is_error for findings in found.values() for each in findings)
    if as_json:
        shown = {policy: [asdict(each) for each in findings] for policy, findings in found.items()}
        print_document({"status": "unfit" if errors else "fit", "findings": shown})
    else:
        for policy, findings in found.items():
            for each in findings:
                _say_finding(policy, each)
            if not findings:
                say(coloured(f"{policy}: nothing to say", "green"))
    return EXIT_FAILED if errors else 0


def _say_finding(policy: str, finding: LintFinding) -> None:
    line = f":{finding.line}" if finding.line else ""
    file, rule = _parted(finding.where, printable(policy))
    said = ": ".join(filter(None, [rule, finding.problem]))
    say(coloured(f"{file}{line}: {finding.code} {said}", _COLOURS[finding.code[0]]))
    say(coloured(f"    fix: {finding.fix}", "dim"))


def _parted(where: str, policy: str) -> tuple[str, str]:
    """The file and the rule in it; the file is the policy or one that it extends."""
    if where == policy or where.startswith(f"{policy} "):
        return policy, where.removeprefix(policy).strip()
    file, end, rule = where.partition(".toml ")
    return (
        (file + end.strip(), rule)
        if end
        else (where, "")
        if where.endswith(".toml")
        else _policy_named(where)
    )


def _policy_named(where: str) -> tuple[str, str]:
    name, _, rule = where.partition(" ")
    return name, rule


# -- explain --------------------------------------------------------------------------------------


def explain(policy: str, verb: str, path: str, *, as_json: bool) -> int:
    """Say what a policy answers to one request, and why; 0 whatever the answer is."""
    configure_logging()
    try:
        act = _act(verb)
        loaded = load_for_review(policy)
        explained = explanation_of(loaded.policy, act, path)
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not explained")
    if as_json:
        print_document(
            {
                "status": "explained",
                "policy": loaded.policy.name,
                "digest": loaded.policy.digest,
                **_explained(loaded, explained),
            }
        )
    else:
        _say_explanation(loaded, explained)
    return 0


def _act(verb: str) -> Act:
    for act in ACTS:
        if act == verb:
            return act
    raise ConfigInvalid(f"{printable(verb)!r} is no verb; there are {', '.join(ACTS)}")


def _explained(loaded: Loaded, explained: Explanation) -> dict[str, Any]:
    document = asdict(explained)
    for each in document["consulted"]:
        each["at"] = place_of(loaded.files, each["layer"], each["kind"], each["rule"], each["pattern"])
        each["why"] = _why(loaded, each["layer"], each["kind"], each["rule"])
    return document


def _say_explanation(loaded: Loaded, explained: Explanation) -> None:
    allowed = explained.verdict == "allow"
    what = f"{explained.act} {explained.path or explained.asked}"
    if allowed:
        decided = "every layer grants it"
    elif explained.rule == NO_GRANT:
        decided = f"nothing in the layer {explained.layer!r} grants it"
    else:
        decided = f"by the rule {explained.rule!r} of the layer {explained.layer!r}"
    say(coloured(f"{explained.verdict.upper()}  {what}: {decided}", "green" if allowed else "red"))
    if not allowed:
        why = one_line(_why(loaded, explained.layer or "", "deny", explained.rule or ""))
        told = {"why": why, "the model": _told(explained), "the operator": explained.operator_is_told}
        for whom, words in told.items():
            if words:
                say(coloured(f"  {whom:15} {words}", "dim"))
    for each in explained.consulted:
        hit = f"matches by {each.pattern!r}" if each.pattern is not None else "does not match"
        at = place_of(loaded.files, each.layer, each.kind, each.rule, each.pattern)
        line = f"  {each.kind:5} {each.rule:24} {hit}  ({at})"
        say(coloured(line, "dim" if each.pattern is None else "green" if each.kind == "allow" else "red"))


def _told(explained: Explanation) -> str:
    return (
        f"is told: {explained.model_is_told}" if explained.model_is_told else "is told nothing: the run ends"
    )


def _why(loaded: Loaded, layer: str, kind: str, rule: str) -> str:
    for file in loaded.files:
        if file.name == layer:
            tables = file.tables.allow if kind == "allow" else file.tables.deny
            return next((table.why for table in tables if table.id == rule), "")
    return ""


# -- test -----------------------------------------------------------------------------------------


def test(policies: Sequence[str], *, as_json: bool) -> int:
    """Run inline tests, and say which weakening of a policy they would not notice; 1 if there is one."""
    configure_logging()
    try:
        results = [_tested(policy) for policy in policies]
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not tested")
    is_good = all(not failed and not _missed(made) for _, failed, made in results)
    if as_json:
        print_document(
            {"status": "passed" if is_good else "failed", "policies": [_result(*each) for each in results]}
        )
    else:
        for result in results:
            _say_result(*result)
    return 0 if is_good else EXIT_FAILED


def _tested(policy: str) -> tuple[Loaded, list[PolicyInvalid], list[Mutant]]:
    loaded = load_for_review(policy, tested=False)
    failed = list(failed_tests(loaded.files[0], loaded.policy))
    return loaded, failed, [] if failed else list(mutants(loaded))


def _missed(made: Iterable[Mutant]) -> list[Mutant]:
    return [each for each in made if each.status in {"survived", "undecided"}]


def _result(loaded: Loaded, failed: list[PolicyInvalid], made: list[Mutant]) -> dict[str, Any]:
    return {
        "policy": loaded.files[0].where,
        "tests": len(loaded.files[0].tables.test),
        "failed": [{"line": each.line, "problem": each.problem} for each in failed],
        "mutants": [{**asdict(each), "suggestion": "\n".join(each.suggestion)} for each in made],
    }


def _say_result(loaded: Loaded, failed: list[PolicyInvalid], made: list[Mutant]) -> None:
    where, tests = loaded.files[0].where, len(loaded.files[0].tables.test)
    for each in failed:
        at = f"{where}:{each.line}" if each.line else where
        say(coloured(f"{at}: {each.where.removeprefix(where).strip()} {each.problem}", "red"))
    for mutant in _missed(made):
        at = place_of(loaded.files[:1], loaded.files[0].name, mutant.kind, mutant.rule, mutant.pattern)
        say(coloured(f"{at}: no test notices {mutant.what}", "red"))
        for line in _fix(mutant):
            say(coloured(f"    {line}", "dim"))
    count = Counter(each.status for each in made)
    counted = ", ".join(
        f"{count[status]} {status}" for status in ("caught", "equivalent", "survived", "undecided")
    )
    told = f"{len(failed)} failed" if failed else f"all hold; weakened in {len(made)} ways: {counted}"
    say(
        coloured(
            f"{where}: {tests} {'test' if tests == 1 else 'tests'}, {told}",
            "red" if failed or _missed(made) else "green",
        )
    )


def _fix(mutant: Mutant) -> list[str]:
    """A test to paste, or what to do where nobody knows one."""
    if mutant.status == "undecided":
        return ["fix: make the policy simpler; nobody can tell what this rule does"]
    return ["fix: correct the rule if it is idle, or add", *mutant.suggestion]


# -- prove ----------------------------------------------------------------------------------------


def prove(sentences: str, policies: Sequence[str], *, as_json: bool) -> int:
    """Prove a file of invariants for policies; 1 unless every one is proved."""
    configure_logging()
    try:
        read, where = read_text(Path(sentences)), printable(sentences)
        if read is None:
            raise PolicyInvalid("E100", where, "there is no such file")
        asked = proofs.read_invariants(parse_toml(read[0], where), where)
        found = {policy: proofs.prove(asked, load_for_review(policy).policy) for policy in policies}
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not proved")
    is_proved = all(each.status == "proved" for findings in found.values() for each in findings)
    if as_json:
        shown = {policy: [asdict(each) for each in findings] for policy, findings in found.items()}
        print_document({"status": "proved" if is_proved else "not proved", "findings": shown})
    else:
        for policy, findings in found.items():
            for each in findings:
                _say_invariant(policy, each)
    return 0 if is_proved else EXIT_FAILED


def _say_invariant(policy: str, finding: proofs.InvariantFinding) -> None:
    shown = " and ".join(f"{each.act} {each.path}" for each in finding.witnesses)
    told = {"proved": "", "broken": f": grants {shown}", "undecided": f": {finding.reason}"}[finding.status]
    line = f"{finding.status:9} {policy}: {finding.kind}[{finding.id}]{told}"
    say(coloured(line, "green" if finding.status == "proved" else "red"))
    if finding.why and finding.status != "proved":
        say(coloured(f"          {one_line(finding.why)}", "dim"))


# -- policy diff -------------------------------------------------------------------------------------
#
# `muniment policy diff`: whether a new policy is wider than an old one, and where.
#
# A widening that people agreed on stands in a file, such as `policies/WIDENINGS.md`, as a heading with the
# name and the digests before and after. An entry is for this one change: any further edit has another
# digest.

DIGEST_CHARS: Final = 32
"""Characters of a digest in an entry: 128 bits, so that nobody finds another policy to fit it."""

MAX_ACCEPTED_BYTES: Final = 1 << 20
"""Bytes of a file of accepted widenings."""

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
"""Of Markdown, as CommonMark has it; what is never closed goes to the end."""


def diff(old: str, new: str, accepted: Path | None, *, as_json: bool) -> int:
    """Compare two policies; 0 only if the new one is proved to be no wider, or its widening is accepted."""
    configure_logging()
    try:
        before, after = load_for_review(old), load_for_review(new)
        entries = read_named(accepted, MAX_ACCEPTED_BYTES).decode(errors="replace") if accepted else ""
        found = difference_of(before.policy, after.policy)
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not compared")
    is_accepted = found.verdict != "proved" and entry_for(before, after) in _entries(entries)
    if as_json:
        print_document(_document(before, after, found, is_accepted=is_accepted))
    else:
        _say(before, after, found)
        if found.verdict != "proved":
            _say_acceptance(before, after, accepted, is_accepted=is_accepted)
    return 0 if found.verdict == "proved" or is_accepted else EXIT_FAILED


def entry_for(before: Loaded, after: Loaded) -> str:
    """The heading under which this widening is accepted."""
    old, new = (each.policy.digest[:DIGEST_CHARS] for each in (before, after))
    return f"{after.policy.name} {old} → {new}"


def _entries(text: str) -> set[str]:
    """What stands in headings of the second level; a heading in a block of code, or in a comment, is none."""
    found = (re.fullmatch(r"## (\S+ \S+ → \S+)[ \t\r]*", line) for line in _prose(text))
    return {match[1] for match in found if match}


def _prose(text: str) -> Iterator[str]:
    """The lines of a Markdown text that stand in no fenced block and in no comment."""
    fence: str | None = None
    for line in _COMMENT.sub("", text).split("\n"):
        marks = _FENCE.match(line)
        if fence is not None:
            is_end = marks is not None and marks[1].startswith(fence) and line.strip() == marks[1]
            fence = None if is_end else fence
        elif marks is not None:
            fence = marks[1]
        else:
            yield line


def _say(before: Loaded, after: Loaded, found: Difference) -> None:
    old, new = before.policy.label, after.policy.label
    if found.verdict == "proved":
        say(coloured(f"proved: {new} grants nothing that {old} does not", "green"))
    elif found.verdict == "wider":
        say(coloured(f"WIDER: {new} grants what {old} does not", "red"))
    else:
        say(coloured(f"UNDECIDED, which counts as wider: {new} against {old}", "red"))
    for gain in found.widenings:
        say(coloured(f"  wider     {', '.join(gain.acts)}  {gain.path}", "red"))
        say(coloured(f"            {_reason(gain.cause, before, after, wider=True)}", "red"))
    for why in found.undecided:
        say(coloured(f"  undecided {why}", "red"))
    for gain in found.narrowings:
        say(coloured(f"  narrower  {', '.join(gain.acts)}  {gain.path}", "green"))
        say(coloured(f"            {_reason(gain.cause, after, before, wider=False)}", "dim"))
    for term in found.terms:
        said = f"  {'LOOSER  ' if term.is_looser else 'stricter'}  {term.name}: {term.old} → {term.new}"
        say(coloured(said, "red" if term.is_looser else "green"))


def _reason(cause: Cause, less: Loaded, more: Loaded, *, wider: bool) -> str:
    """What makes the difference: `less` does not grant what `more` does; `wider` if `more` is the new one."""
    if cause.kind == "scope":
        told = "is declared now" if wider else "is declared no longer"
        return f"the scope {cause.rule!r} ({_at_revision(cause, less, more)}) {told}"
    if cause.kind == "layer":
        told = "is part of the policy no longer" if wider else "is part of the policy now"
        at = _at_revision(cause, less, more)
        return f"the file {cause.layer!r}{'' if at == cause.layer else f' ({at})'}, which denies it, {told}"
    at = _at_revision(cause, less, more)
    named = f"the {cause.kind} rule {cause.rule!r}, pattern {cause.pattern!r} ({at}),"
    if cause.kind == "deny":
        return f"{named} {'no longer denies it' if wider else 'denies it now'}"
    return f"{named} {'grants it now' if wider else 'no longer grants it'}"


def _at_revision(cause: Cause, less: Loaded, more: Loaded) -> str:
    """Where the rule or the scope stands, with its line; of a whole file, the file."""
    if cause.kind == "scope":
        file = next(each for each in more.files if cause.rule in (each.tables.scopes or ()))
        line = line_of(file.text, "scopes", None, cause.rule)
        return f"{file.where}:{line}" if line else file.where
    holder = more if cause.kind == "allow" else less
    return place_of(holder.files, cause.layer, cause.kind, cause.rule, cause.pattern)


def _say_acceptance(before: Loaded, after: Loaded, accepted: Path | None, *, is_accepted: bool) -> None:
    if is_accepted:
        say(coloured(f"accepted in {accepted}", "yellow"))
        return
    where = accepted or "a file that you name with --accepted"
    say(coloured(f"to accept it, add to {where}, with who agreed and why:", "yellow"))
    say(f"## {entry_for(before, after)}")


def _document(before: Loaded, after: Loaded, found: Difference, *, is_accepted: bool) -> dict[str, Any]:
    return {
        "status": "compared",
        "verdict": found.verdict,
        "accepted": is_accepted,
        "entry": entry_for(before, after),
        "old": {"name": before.policy.name, "digest": before.policy.digest},
        "new": {"name": after.policy.name, "digest": after.policy.digest},
        "widenings": _gains(found.widenings, before, after),
        "narrowings": _gains(found.narrowings, after, before),
        "terms": [asdict(term) for term in found.terms],
        "undecided": list(found.undecided),
    }


def _gains(gains: Sequence[Gain], less: Loaded, more: Loaded) -> list[dict[str, Any]]:
    return [{**asdict(gain), "at": _at_revision(gain.cause, less, more)} for gain in gains]
