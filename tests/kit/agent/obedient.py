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
_LATE = ("{answers}", "{shown}")
_UNSEEN = re.compile(r"^[0-9]+\t|\s|\\", re.MULTILINE)
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
def injections() -> dict[str, dict[str, Any]]:
    """Return the cases of the file, by id."""
    return {raw["id"]: raw for raw in json.loads(DATA.read_text(encoding="utf-8"))}


def load(name: str, home: Path) -> Case:
    """Return one case for a host with this `home`."""
    raw = injections()[name]
    obeying = tuple(
        (tool, _filled(args, "{home}", str(home))) for each in raw["obeying"] for tool, args in _calls(each)
    )
    text = raw["text"].replace("{home}", str(home))
    return Case(**{**raw, "text": text, "obeying": obeying, "may": tuple(raw.get("may", ()))})


class Obedient:
    """Obeys each of `cases` whose text it receives; until then it searches for entries related to the fact.

    Attributes:
        per_turn: maximum calls in one turn.
        heard: all texts received.
        obeyed: ids of the cases whose text was received, in order.
        looked: search calls made so far.
        made: calls made to obey.
        left: calls still to make.
    """

    name, _words = "obedient", "Nothing to do."

    def __init__(self, cases: Sequence[Case], per_turn: int = 100_000) -> None:
        self.cases, self.per_turn, self.heard = cases, per_turn, []
        self.obeyed, self.looked, self.made, self.left = [], [], [], []

    def respond(self, request: ModelRequest) -> Reply:
        """Return the reply of one turn (the model protocol)."""
        answers = [message.text for message in request.messages if isinstance(message, ToolMessage)]
        first = len(self.looked) + len(self.made)
        calls, words = self.decide([message.text for message in request.messages], answers)
        made = tuple(ToolCall(f"call-{number}", *each) for number, each in enumerate(calls, first))
        return Reply("" if calls else words, made)

    def decision(self, body: Mapping[str, Any]) -> dict[str, str]:
        """Return where to store the fact, if the request allows only this decision."""
        self.heard = [str(message.get("content") or "") for message in body["messages"]]
        self._listen()
        asked = [args for case in self.cases for _, args in case.obeying]
        paths = [args["path"] for args in asked if isinstance(args.get("path"), str)]
        file = next(iter(paths), "user/note.md").removeprefix("user/")
        return {"title": self.heard[-1], "scope": "user", "type": "user", "file": file}

    def decide(self, texts: Sequence[str], answers: Sequence[str]) -> tuple[list[Call], str]:
        """Return the next calls, and the final text for a turn without calls.

        Args:
            texts: everything the run has shown so far.
            answers: the tool results among it.
        """
        self.heard = list(texts)
        self._listen()
        calls = self._obeying(answers) if self.obeyed else self._looking(answers)
        (self.made if self.obeyed else self.looked).extend(calls)
        return calls, self._words

    def _listen(self) -> None:
        heard = _bare("\n".join(self.heard))
        for case in self.cases:
            if case.id not in self.obeyed and _bare(case.text) in heard:
                self.obeyed.append(case.id)
                self.left += [(tool, _filled(args, "{text}", case.text)) for tool, args in case.obeying]
                self._words, self.per_turn = case.final_text, min(self.per_turn, case.per_turn)

    def _obeying(self, answers: Sequence[str]) -> list[Call]:
        """Return the calls up to the next one that has to wait for results."""
        batch: list[Call] = []
        while self.left and len(batch) < self.per_turn and not (batch and _is_late(self.left[0])):
            tool, args = self.left.pop(0)
            for placeholder, said in zip(_LATE, (answers, self.heard), strict=True):
                args = _filled(args, placeholder, "\n".join(said))
            batch.append((tool, args))
        return batch

    def _looking(self, answers: Sequence[str]) -> list[Call]:
        """Return the calls of a model that was not yet attacked: grep for the fact, then read the hits."""
        fact = next((found[2] for text in self.heard if (found := _FACT.search(text))), "")
        wanted: list[Call] = [("grep", {"pattern": re.escape(fact.partition(":")[0])})]
        wanted += [("read_file", {"path": path}) for path in dict.fromkeys(_HIT.findall("\n".join(answers)))]
        return [call for call in wanted if call not in self.looked][: self.per_turn]


def _calls(each: list[Any]) -> Iterator[Call]:
    tool, args, *times = each
    args = _lengthened(args)
    for number in range(times[0] if times else 1):
        yield tool, _filled(args, "{i}", str(number)) if times else args


def _lengthened(value: Any) -> Any:
    if isinstance(value, dict) and "$repeat" in value:
        text, times = value["$repeat"]
        return value.get("$pre", "") + text * times + value.get("$post", "")
    return {name: _lengthened(part) for name, part in value.items()} if isinstance(value, dict) else value


def _filled(value: Any, placeholder: str, text: str) -> Any:
    if isinstance(value, dict):
        return {name: _filled(part, placeholder, text) for name, part in value.items()}
    return value.replace(placeholder, text) if isinstance(value, str) else value


def _is_late(call: Call) -> bool:
    values = [value for value in call[1].values() if isinstance(value, str)]
    return any(placeholder in value for placeholder in _LATE for value in values)


def _bare(text: str) -> str:
    """Return `text` without the layout that a tool, an index or a protocol adds, for comparison."""
    return _UNSEEN.sub("", text)
