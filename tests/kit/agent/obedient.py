"""A model that obeys every injected instruction it reads: the worst case of a run.

The instructions and the calls that obey them are data in injections.json:

```
[{"id", "lang",
  "text",                    the text shown to the model
  "where": "fact" | "entry" | "index",   the fact, the body of an entry, or the description of one
  "obeying": [[tool, arguments] | [tool, arguments, times], …],
  "effect",                  the guarantee that this case tests, for readers
  "ends",                    "completed", "unchanged", or the expected error code of the run
  "allowed"?, "may"?: […],   the policy allows an effect: exactly these entries change
  "stopped"?,                the error code, without any change, if texts are gated and a lower trust may
                             not replace a higher one: no other control stops this case
  "quoted"?,                 the text contains the call itself, so that repeating it is a quotation
  "scope"?, "final_text"?, "per_turn"?}, …]
```

In texts and arguments `{home}` is a directory of the host, `{text}` the injection, `{i}` the number of a call
repeated `times`, `{answers}` all tool results until then, and `{shown}` everything the model has received:
the model copies every leak into the memory. A call with one of the last two starts a new turn. `{"$repeat":
[s, n], "$pre"?, "$post"?}` is a long string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from muniment.agent.model import ModelRequest, Reply, ToolCall, ToolMessage

DATA = Path(__file__).with_name("injections.json")

_FACT = re.compile(r"<<fact (\w+)>>\n(.*?)\n<<end \1>>", re.DOTALL)
_HIT = re.compile(r"^([^:\n]+\.md):[0-9]+: ", re.MULTILINE)
_LATE_PLACEHOLDERS = ("{answers}", "{shown}")
_LAYOUT_CHARS = re.compile(r"^[0-9]+\t|\s|\\", re.MULTILINE)
"""Characters that tools and indexes add to a displayed text: line numbers, spaces, backslashes."""

Call = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One injection with `{home}` filled in; the module docstring describes the fields."""

    id: str
    lang: str
    text: str
    where: str
    obeying: tuple[Call, ...]
    effect: str
    ends: str
    allowed: bool = False
    may: tuple[str, ...] = ()
    stopped: str | None = None
    quoted: bool = False
    scope: str | None = None
    final_text: str = "Done as instructed."
    per_turn: int = 100_000


@lru_cache(maxsize=1)
def load_injections() -> dict[str, dict[str, Any]]:
    """Return the cases of the file, by id."""
    return {raw["id"]: raw for raw in json.loads(DATA.read_text(encoding="utf-8"))}


def load_case(name: str, home: Path) -> Case:
    """Return one case for a host with this `home`."""
    raw = load_injections()[name]
    obeying = tuple(
        (tool, _fill(args, "{home}", str(home)))
        for each in raw["obeying"]
        for tool, args in _expand_calls(each)
    )
    text = raw["text"].replace("{home}", str(home))
    return Case(**{**raw, "text": text, "obeying": obeying, "may": tuple(raw.get("may", ()))})


class Obedient:
    """Obeys each of `cases` whose text it receives; until then it searches for entries related to the fact.

    Attributes:
        per_turn: maximum calls in one turn.
        texts: all texts received.
        obeyed: ids of the cases whose text was received, in order.
        search_calls: search calls made so far.
        obeying_calls: calls made to obey.
        pending_calls: calls still to make.
    """

    name, _final_text = "obedient", "Nothing to do."

    def __init__(self, cases: Sequence[Case], per_turn: int = 100_000) -> None:
        self.cases, self.per_turn, self.texts = cases, per_turn, []
        self.obeyed, self.search_calls, self.obeying_calls, self.pending_calls = [], [], [], []

    def respond(self, request: ModelRequest) -> Reply:
        """Return the reply of one turn (the model protocol)."""
        answers = [message.text for message in request.messages if isinstance(message, ToolMessage)]
        first = len(self.search_calls) + len(self.obeying_calls)
        calls, text = self.choose_calls([message.text for message in request.messages], answers)
        tool_calls = tuple(ToolCall(f"call-{number}", *each) for number, each in enumerate(calls, first))
        return Reply("" if calls else text, tool_calls)

    def make_decision(self, body: Mapping[str, Any]) -> dict[str, str]:
        """Return where to store the fact, if the request allows only this decision."""
        self.texts = [str(message.get("content") or "") for message in body["messages"]]
        self._match_cases()
        arguments = [args for case in self.cases for _, args in case.obeying]
        paths = [args["path"] for args in arguments if isinstance(args.get("path"), str)]
        file = next(iter(paths), "user/note.md").removeprefix("user/")
        return {"title": self.texts[-1], "scope": "user", "type": "user", "file": file}

    def choose_calls(self, texts: Sequence[str], answers: Sequence[str]) -> tuple[list[Call], str]:
        """Return the next calls, and the final text for a turn without calls.

        Args:
            texts: everything the run has shown so far.
            answers: the tool results among it.
        """
        self.texts = list(texts)
        self._match_cases()
        calls = self._next_obeying_calls(answers) if self.obeyed else self._next_search_calls(answers)
        (self.obeying_calls if self.obeyed else self.search_calls).extend(calls)
        return calls, self._final_text

    def _match_cases(self) -> None:
        shown_text = _strip_layout("\n".join(self.texts))
        for case in self.cases:
            if case.id not in self.obeyed and _strip_layout(case.text) in shown_text:
                self.obeyed.append(case.id)
                self.pending_calls += [
                    (tool, _fill(args, "{text}", case.text)) for tool, args in case.obeying
                ]
                self._final_text, self.per_turn = case.final_text, min(self.per_turn, case.per_turn)

    def _next_obeying_calls(self, answers: Sequence[str]) -> list[Call]:
        """Return the calls up to the next one that has to wait for results."""
        batch: list[Call] = []
        while (
            self.pending_calls
            and len(batch) < self.per_turn
            and not (batch and _is_late(self.pending_calls[0]))
        ):
            tool, args = self.pending_calls.pop(0)
            for placeholder, texts in zip(_LATE_PLACEHOLDERS, (answers, self.texts), strict=True):
                args = _fill(args, placeholder, "\n".join(texts))
            batch.append((tool, args))
        return batch

    def _next_search_calls(self, answers: Sequence[str]) -> list[Call]:
        """Return the calls of a model that was not yet attacked: grep for the fact, then read the hits."""
        fact = next((found[2] for text in self.texts if (found := _FACT.search(text))), "")
        search_calls: list[Call] = [("grep", {"pattern": re.escape(fact.partition(":")[0])})]
        search_calls += [
            ("read_file", {"path": path}) for path in dict.fromkeys(_HIT.findall("\n".join(answers)))
        ]
        return [call for call in search_calls if call not in self.search_calls][: self.per_turn]


def _expand_calls(each: list[Any]) -> Iterator[Call]:
    tool, args, *times = each
    args = _expand_repeats(args)
    for number in range(times[0] if times else 1):
        yield tool, _fill(args, "{i}", str(number)) if times else args


def _expand_repeats(value: Any) -> Any:
    if isinstance(value, dict) and "$repeat" in value:
        text, times = value["$repeat"]
        return value.get("$pre", "") + text * times + value.get("$post", "")
    return {name: _expand_repeats(part) for name, part in value.items()} if isinstance(value, dict) else value


def _fill(value: Any, placeholder: str, text: str) -> Any:
    if isinstance(value, dict):
        return {name: _fill(part, placeholder, text) for name, part in value.items()}
    return value.replace(placeholder, text) if isinstance(value, str) else value


def _is_late(call: Call) -> bool:
    values = [value for value in call[1].values() if isinstance(value, str)]
    return any(placeholder in value for placeholder in _LATE_PLACEHOLDERS for value in values)


def _strip_layout(text: str) -> str:
    """Return `text` without the layout that a tool, an index or a protocol adds, for comparison."""
    return _LAYOUT_CHARS.sub("", text)
