"""How text from elsewhere is handed to a model: between marks that nothing in it can imitate. Pure."""

from __future__ import annotations

import re


def fenced(text: str, kind: str, token: str) -> str:
    """`text` between two lines that nothing inside can imitate, as it does not know `token`."""
    return f"<<{kind} {token}>>\n{text}\n<<end {token}>>"


def without_fences(text: str, token: str) -> str:
    """`text` without the marks of `fenced` for this token, and without the lines that held only these."""
    if token not in text:
        return text
    marks = re.compile(rf"<<\w{{1,20}}+ {re.escape(token)}>>")
    kept = [(line, marks.sub("", line)) for line in text.splitlines(keepends=True)]
    return "".join(rest for line, rest in kept if token not in rest and (rest.strip() or not line.strip()))
