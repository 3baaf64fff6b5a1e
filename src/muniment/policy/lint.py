"""What is wrong with a policy file, or looks so: all of it, with the line and what to write instead.

    E1xx E2xx E4xx   as `load`: the file does not load; here every complaint of the first stage that has any,
                     but of a parent only the first
    E601  the file asks for more than its parents grant; the meet makes it harmless, and the file is misread
    W301  an allow pattern that matches no path          W302  an allow rule all of which is denied
    W303  a deny pattern that others cover               W304  a deny pattern where nothing is granted
    I501  a rule that no inline test reaches
    W801  delete is granted to the model                 W802  no enforcement is required
    W803  facts from outside are taken as they come      W804  a run may read `user` and write `team`
    W805  gates are off                                  W806  an escape does not end the run

W3xx, E601 and W801, W804 are proved by automata; what those cannot decide is not reported.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from muniment.errors import PolicyInvalid, printable
from muniment.policy.family import Member, parse_toml, read_family, read_text, shipped_folder
from muniment.policy.finding import Finding, as_findings, in_order
from muniment.policy.invariants import SCHEMA as INVARIANTS
from muniment.policy.load import failed_tests, load_files, wrong_patterns
from muniment.policy.review import Review
from muniment.policy.tables import complaints, is_path


def lint(name_or_path: str, *, policies_dir: Path | None = None) -> list[Finding]:
    """Everything about a policy that a reviewer should look at, errors first, in the order of lines.

    Args:
        name_or_path: as for `load_files`.
        policies_dir: as for `load_files`. Locks beside the file do not count: it is being edited.

    Cost: as `diff` for each deny pattern and allow rule; a policy like `strict` takes 0.3 s.
    """
    try:
        member = read_family(name_or_path, policies_dir)
    except PolicyInvalid as problem:
        return as_findings(_complaints(name_or_path, policies_dir) or [problem])
    path = member.file.path
    folder = path.parent if path else None
    try:
        loaded = load_files(name_or_path, policies_dir=policies_dir, unlocked=folder, tested=False)
    except PolicyInvalid as problem:
        return as_findings(_pattern_problems(member) or [problem])
    failed = as_findings(failed_tests(loaded.files[0], loaded.policy))
    return in_order([*failed, *Review(loaded).findings()])


def _complaints(name_or_path: str, policies_dir: Path | None) -> list[PolicyInvalid]:
    """All that is wrong with a file by itself, if it can be read at all."""
    named = [folder / f"{name_or_path}.toml" for folder in (shipped_folder(), policies_dir) if folder]
    where = printable(name_or_path)
    with suppress(PolicyInvalid):
        for path in [Path(name_or_path)] if is_path(name_or_path) else named:
            if (read := read_text(path)) is not None:
                data = parse_toml(read[0], where)
                if data.get("schema") == INVARIANTS:
                    problem = "is a file of invariants; run: muniment policy prove FILE POLICY"
                    return [PolicyInvalid("E105", where, problem)]
                return complaints(data, where, read[0])
    return []


def _pattern_problems(member: Member) -> list[PolicyInvalid]:
    with suppress(PolicyInvalid):
        return wrong_patterns(member)
    return []
