"""The inline tests of a policy file: what `[[test]]` asks of the effective policy, and what it answers.

A test names a verb, or `removal`, and a path as a model would write it, so the name grammar answers first.
With `file_bytes`, `files` or `total_bytes` it asks about quotas too: whether the file may be written such
that it has so many bytes, or its scope would hold so many files or bytes, as the quotas count them.
"""

from __future__ import annotations

from muniment.errors import PathEscape, Refusal
from muniment.names import Verb
from muniment.policy.decide import REMOVAL, Act, Judge
from muniment.policy.grammar import CanonicalPath, canonicalise, check_creatable
from muniment.policy.model import QUOTA_NUMBERS, Policy
from muniment.policy.tables import CheckTable


def act_of(check: CheckTable) -> Act:
    """What an inline test asks for."""
    return REMOVAL if check.verb == REMOVAL else Verb(check.verb)


def failure(check: CheckTable, judge: Judge, policy: Policy) -> str | None:
    """How the policy fails an inline test, the name grammar included; None if it does not."""
    try:
        path = canonicalise(check.path, policy.scopes)
        _require(act_of(check), judge, path)
    except (PathEscape, Refusal) as refusal:
        answer, told = "deny", str(refusal)
    else:
        over = _over_quota(check, judge, path)
        answer, told = ("deny", over) if over else ("allow", "every layer grants it")
    return None if answer == check.expect else f"expects {check.expect}, the policy says {answer}: {told}"


def _require(act: Act, judge: Judge, path: CanonicalPath) -> None:
    if act == REMOVAL:
        judge.require_removal(path)
        return
    if act == Verb.CREATE:
        check_creatable(path)
    judge.require(Verb(act), path)


def _over_quota(check: CheckTable, judge: Judge, path: CanonicalPath) -> str | None:
    """The first quota that is exceeded, in words; None if none is."""
    for quota in judge.quotas_for(path):
        for field in QUOTA_NUMBERS:
            asked, most = getattr(check, field.removeprefix("max_")), getattr(quota, field)
            if asked is not None and asked > most:
                return f"the quota {quota.id!r} has {field} = {most}"
    return None
