"""An effective policy for people: what each layer grants and denies, and which file each value comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from muniment.content.gates import one_line
from muniment.policy.decide import Layer, Policy, Quota
from muniment.policy.family import PolicyText
from muniment.policy.load import Loaded
from muniment.policy.tables import line_of

DEFAULT: Final = "default"
"""What no file says; the value is the one of `strict`, or stricter."""

_SECTIONS: Final = ("limits", "confinement", "changes", "content", "provenance", "retention")


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
            for section in _SECTIONS
            for key, value in getattr(policy, section).model_dump(mode="json").items()
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
                **rule.model_dump(mode="json"),
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
            if _numbers(table) == _numbers(quota) and sorted(set(table.paths)) == list(quota.paths):
                line = line_of(file.text, "quota", quota.id)
                return {**quota.model_dump(mode="json"), "from": file.name, "line": line}
    return {**quota.model_dump(mode="json"), "from": DEFAULT, "line": None}


def _numbers(quota: Quota) -> dict[str, Any]:
    return quota.model_dump(exclude={"paths"})


def _term(section: str, key: str, value: object, files: tuple[PolicyText, ...]) -> dict[str, Any]:
    """A scalar or list, and the first file that says as much; of a list, all files that add to it."""
    saying = []
    for file in files:
        table = getattr(file.tables, section)
        said = table.model_dump(mode="json")[key] if key in table.model_fields_set else None
        if said == value or (isinstance(value, list) and isinstance(said, list) and sorted(said) == value):
            return {
                "key": f"{section}.{key}",
                "value": value,
                "from": file.name,
                "line": line_of(file.text, section, None, key),
            }
        if isinstance(value, list) and said:
            saying.append(file.name)
    return {"key": f"{section}.{key}", "value": value, "from": ", ".join(saying) or DEFAULT, "line": None}


def _text(value: object) -> str:
    return (" ".join(value) or "none") if isinstance(value, list) else str(value)


def _at(name: str, line: int | None) -> str:
    return "" if line is None else f"  ({name}:{line})" if name else f":{line}"


def _table(rows: Iterable[list[str]]) -> Iterator[str]:
    kept = list(rows)
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    for row in kept:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
