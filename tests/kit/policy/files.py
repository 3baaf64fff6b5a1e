"""Small policy files for tests."""

import pytest

from muniment.errors import PolicyInvalid
from muniment.policy.load import parse_policy

SCOPES = '[scopes]\nuser = { trust = "owner", commit = "auto" }\n'
READ = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/**"]\n'
READS = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/**"]\n'
CHECK = '[[test]]\nverb = "{}"\npath = "user/{}"\nexpect = "{}"\n'
TESTED = READS + CHECK.format("read", "a.md", "allow")


def rule(kind, name, verbs, paths):
    return f'[[{kind}]]\nid = "{name}"\nverbs = {list(verbs)}\npaths = {list(paths)}\n'.replace("'", '"')


def allow(*paths, verbs=("read",), name="a"):
    return rule("allow", name, verbs, paths)


def deny(*paths, verbs=("*",), name="d"):
    return rule("deny", name, verbs, paths)


def quota(name="q", path="/**", **numbers):
    said = "".join(f"{key} = {number}\n" for key, number in numbers.items())
    return f'[[quota]]\nid = "{name}"\npaths = ["{path}"]\n{said}'


def named(name, body=SCOPES + READ, extends=()):
    listed = ", ".join(f'"{each}"' for each in extends)
    return f'schema = "muniment-policy/1"\nname = "{name}"\nextends = [{listed}]\n{body}'


def write(path, name=None, body=SCOPES + READ, extends=()):
    """Write a policy file, by default named after `path`; return the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(named(name or path.stem, body, extends))
    return str(path)


def parsed(text, **parents):
    """Parse the policy of a file; `parents` are the texts that it may extend, by name."""
    return parse_policy(text, where="own", parents=parents.__getitem__)


def refusal(call, *given, **terms):
    """Return the error of an invalid policy; its message must be one line."""
    with pytest.raises(PolicyInvalid) as caught:
        call(*given, **terms)
    assert str(caught.value).isprintable()
    return caught.value


def code(call, *given, **terms):
    """Return the error code of an invalid policy, or None if it is valid."""
    try:
        call(*given, **terms)
    except PolicyInvalid as invalid:
        return invalid.rule if str(invalid).isprintable() else "no line"
    return None
