"""Policy files for tests, small ones."""

from __future__ import annotations

import pytest

from muniment.errors import PolicyInvalid
from muniment.policy.load import parse_policy

SCOPES = '[scopes]\nuser = { trust = "owner", commit = "auto" }\n'
READ = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/**"]\n'
READ_USER = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/**"]\n'
CHECK = '[[test]]\nverb = "{}"\npath = "user/{}"\nexpect = "{}"\n'
TESTED = READ_USER + CHECK.format("read", "a.md", "allow")


def rule(kind, name, verbs, paths):
    return f'[[{kind}]]\nid = "{name}"\nverbs = {list(verbs)}\npaths = {list(paths)}\n'.replace("'", '"')


def quota(name="q", path="/**", **numbers):
    return f'[[quota]]\nid = "{name}"\npaths = ["{path}"]\n' + "".join(
        f"{k} = {v}\n" for k, v in numbers.items()
    )


def named(name, body=SCOPES + READ, extends=()):
    listed = ", ".join(f'"{each}"' for each in extends)
    return f'schema = "muniment-policy/1"\nname = "{name}"\nextends = [{listed}]\n{body}'


def write(path, name=None, body=SCOPES + READ, extends=()):
    """A policy file at `path`, called after it unless told otherwise; the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(named(name or path.stem, body, extends))
    return str(path)


def parsed(text, **parents):
    """The policy of a file; `parents` are the texts of those that it may extend, by name."""
    return parse_policy(text, where="own", parents=parents.__getitem__)


def refusal(call, *given, **terms):
    """Why there is no policy, which is said in one line."""
    with pytest.raises(PolicyInvalid) as caught:
        call(*given, **terms)
    assert str(caught.value).isprintable()
    return caught.value


def code(call, *given, **terms):
    """The code of why there is no policy, or None if there is one."""
    try:
        call(*given, **terms)
    except PolicyInvalid as invalid:
        found = invalid
    else:
        return None
    assert str(found).isprintable()
    return found.rule
