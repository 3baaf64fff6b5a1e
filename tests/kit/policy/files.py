"""Policy files for tests, small ones."""

from __future__ import annotations

SCOPES = '[scopes]\nuser = { trust = "owner", commit = "auto" }\n'
READ = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/**"]\n'
READ_USER = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/**"]\n'
CHECK = '[[test]]\nverb = "{}"\npath = "user/{}"\nexpect = "{}"\n'
TESTED = READ_USER + CHECK.format("read", "a.md", "allow")


def rule(kind, name, verbs, paths):
    return f'[[{kind}]]\nid = "{name}"\nverbs = {list(verbs)}\npaths = {list(paths)}\n'.replace("'", '"')


def named(name, body=SCOPES + READ, extends=()):
    listed = ", ".join(f'"{each}"' for each in extends)
    return f'schema = "muniment-policy/1"\nname = "{name}"\nextends = [{listed}]\n{body}'


def write(path, name=None, body=SCOPES + READ, extends=()):
    """A policy file at `path`, called after it unless told otherwise; the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(named(name or path.stem, body, extends))
    return str(path)
