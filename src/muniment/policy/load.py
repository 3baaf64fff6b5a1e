"""Policy files → the effective `Policy`, or `PolicyInvalid` and nothing runs.

    1. The text is TOML of at most `MAX_FILE_BYTES` that `tables` knows completely (E1xx).
    2. Parents are loaded first, by name: from the folder of the file, or shipped.
    3. Every pattern is in the dialect, and every deny pattern fires on a sample (`pattern`, E2xx).
    4. The file's own policy is met with its parents': it can only narrow them.
    5. The file's inline tests hold against the result (E401).

Codes of this module: E100 a file cannot be read · E102 not TOML · E120 no policy of that name · E121 a policy
extends itself · E122 too many generations · E123 a file that calls itself something else · E124 a file that
shadows a shipped policy · E125 no scope is declared, or none is left · E401 an inline test fails.

What does not hold: nobody has signed a file; whoever may write the folder decides what a run may do.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from functools import partial, reduce
from importlib import resources
from pathlib import Path
from typing import Any, Final

from muniment.errors import PathEscape, PolicyInvalid, Refusal, printable
from muniment.names import Scope, Verb
from muniment.policy.decide import Judge
from muniment.policy.grammar import canonicalise, check_creatable
from muniment.policy.meet import meet, sorted_quotas
from muniment.policy.model import Content, Layer, Policy, Quota, Rule, ScopeTerms
from muniment.policy.pattern import check_pattern
from muniment.policy.tables import CheckTable, PolicyFile, RuleTable, read_tables

MAX_FILE_BYTES: Final = 262_144
"""Bytes of a policy file; the shipped ones have about 3 000. What is longer nobody reviews."""

MAX_GENERATIONS: Final = 8
"""Policies from a file to its remotest ancestor, itself included."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

Lookup = Callable[[str], str]
"""From the name of a policy to the text of its file; raises PolicyInvalid if there is none."""


def load_policy(name_or_path: str, *, policies_dir: Path | None = None) -> Policy:
    """Load a policy with all it extends.

    Args:
        name_or_path: a path if it holds a `/` or ends in `.toml`; otherwise the name of a shipped policy
            or of one in `policies_dir`. Parents of a path are sought in its own folder, then shipped.
        policies_dir: where a person keeps policies; None for nowhere.

    Raises:
        PolicyInvalid: for the first thing that is wrong.
    """
    if "/" not in name_or_path and not name_or_path.endswith(".toml"):
        return _Family(partial(_text_of, folder=policies_dir)).named(name_or_path)
    path = Path(name_or_path)
    text = _read(path)
    if text is None:
        raise PolicyInvalid("E100", printable(name_or_path), "there is no such file")
    return parse_policy(text, where=printable(name_or_path), parents=partial(_text_of, folder=path.parent))


def parse_policy(text: str, *, where: str, parents: Lookup) -> Policy:
    """The effective policy of a file's text.

    Args:
        text: the file, as TOML.
        where: name or path of the file, for messages.
        parents: gives the text of each policy in `extends`.

    Raises:
        PolicyInvalid: for the first thing that is wrong, `where` and place included.
    """
    return _Family(parents).parse(text, where, ())


class _Family:
    """One load: each ancestor is read once."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._known: dict[str, Policy] = {}

    def parse(self, text: str, where: str, descendants: tuple[str, ...]) -> Policy:
        file = read_tables(_toml(text, where), where)
        line = (*descendants, file.name)
        return _effective(file, [self.named(name, line) for name in file.extends], where)

    def named(self, name: str, descendants: tuple[str, ...] = ()) -> Policy:
        if name in descendants:
            raise PolicyInvalid("E121", name, f"extends itself by way of {' → '.join(descendants)}")
        if len(descendants) >= MAX_GENERATIONS:
            raise PolicyInvalid("E122", name, f"is more than {MAX_GENERATIONS} generations away")
        if name not in self._known:
            policy = self.parse(self._lookup(name), name, descendants)
            if policy.name != name:
                raise PolicyInvalid("E123", name, f"the file calls itself {policy.name!r}")
            self._known[name] = policy
        return self._known[name]


def _effective(file: PolicyFile, parents: list[Policy], where: str) -> Policy:
    own = _own(file, _scope_terms(file, parents, where), where)
    policy = reduce(meet, parents, own).model_copy(update={"name": file.name})
    if not policy.scopes:
        raise PolicyInvalid("E125", where, "no scope is left: the policy and its parents share none")
    judge = Judge(policy)
    for number, check in enumerate(file.test, start=1):
        _run(check, judge, policy, f"{where} test {number}")
    return policy


def _scope_terms(file: PolicyFile, parents: list[Policy], where: str) -> tuple[ScopeTerms, ...]:
    if file.scopes is not None:
        return tuple(
            ScopeTerms(name=Scope(name), trust=terms.trust, commit=terms.commit)
            for name, terms in file.scopes.items()
        )
    if not parents:
        raise PolicyInvalid("E125", where, "declares no [scopes] and extends nothing that does")
    return reduce(meet, parents).scope_terms


def _own(file: PolicyFile, scope_terms: tuple[ScopeTerms, ...], where: str) -> Policy:
    """What the file says by itself, its patterns checked."""
    scopes = tuple(terms.name for terms in scope_terms)
    layer = Layer(name=file.name, allow=_rules(file.allow), deny=_rules(file.deny))
    quotas = [Quota(**{**dict(table), "paths": _sorted(table.paths)}) for table in file.quota]
    for kind, tables in (("allow", layer.allow), ("deny", layer.deny), ("quota", quotas)):
        for table in tables:
            for pattern in table.paths:
                place = f"{where} {kind}[{table.id}]"
                check_pattern(pattern, deny=kind == "deny", scopes=scopes, where=place)
    return Policy(
        name=file.name,
        scope_terms=scope_terms,
        layers=(layer,),
        quotas=sorted_quotas([*quotas, *_missing_quotas(quotas, scopes)]),
        limits=file.limits,
        confinement=file.confinement,
        changes=file.changes,
        content=Content(**{**dict(file.content), "reject": _sorted(file.content.reject)}),
        provenance=file.provenance,
        retention=file.retention,
    )


def _rules(tables: Iterable[RuleTable]) -> tuple[Rule, ...]:
    rules = [Rule(id=table.id, verbs=_verbs(table), paths=_sorted(table.paths)) for table in tables]
    return tuple(sorted(rules, key=lambda rule: rule.id))


def _verbs(table: RuleTable) -> tuple[Verb, ...]:
    return tuple(sorted(Verb)) if "*" in table.verbs else tuple(sorted({Verb(verb) for verb in table.verbs}))


def _sorted(texts: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(texts)))


def _missing_quotas(quotas: list[Quota], scopes: tuple[Scope, ...]) -> list[Quota]:
    """The built-in ceiling `default` for scopes that no quota covers as a whole."""
    patterns = {pattern for quota in quotas for pattern in quota.paths}
    whole = {"/**", "/**/*.md", "/*/**", "/*/**/*.md"}
    bare = [s for s in scopes if not patterns & {*whole, f"/{s}/**", f"/{s}/**/*.md"}]
    return [Quota(id="default", paths=tuple(sorted(f"/{scope}/**" for scope in bare)))] if bare else []


def _run(check: CheckTable, judge: Judge, policy: Policy, place: str) -> None:
    """Hold the policy to one inline test, the name grammar included."""
    try:
        path = canonicalise(check.path, policy.scopes)
        if check.verb is Verb.CREATE:
            check_creatable(path)
        judge.require(check.verb, path)
    except (PathEscape, Refusal) as refusal:
        answer, told = "deny", str(refusal)
    else:
        answer, told = "allow", "every layer grants it"
    if answer != check.expect:
        raise PolicyInvalid("E401", place, f"expects {check.expect}, the policy says {answer}: {told}")


def _toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:  # TOMLDecodeError is one, and so is a number of too many digits.
        problem = str(error)
    raise PolicyInvalid("E102", where, f"not TOML: {problem}")


def _text_of(name: str, *, folder: Path | None) -> str:
    """The file of the policy `name`, shipped or in `folder`."""
    if _NAME.fullmatch(name) is None:
        raise PolicyInvalid("E111", printable(name), "a policy name is made of a-z, 0-9, `-` and `_`")
    shipped = _read(Path(str(resources.files("muniment") / "policies" / f"{name}.toml")))
    local = _read(folder / f"{name}.toml") if folder is not None else None
    if shipped is not None and local is not None and shipped != local:
        raise PolicyInvalid("E124", name, f"{folder} holds another policy of a shipped name; rename that one")
    text = shipped if shipped is not None else local
    if text is None:
        raise PolicyInvalid("E120", name, "there is no policy of that name, shipped or in the policy folder")
    return text


def _read(path: Path) -> str | None:
    """The text of the file; None if there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: NUL in the path.
        raise PolicyInvalid("E100", printable(str(path)), f"cannot be read: {error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise PolicyInvalid("E100", printable(str(path)), f"is longer than {MAX_FILE_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PolicyInvalid("E100", printable(str(path)), "is not UTF-8 text") from None
