"""The effects that a case may ask for, judged after the commit."""

from __future__ import annotations

import base64
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muniment.testing.corpus.failure import Failure, Kind
from muniment.testing.corpus.stage import Stage

INDEX: Final = "MEMORY.md"
PAGES: Final = "index"
BRINGS_ABOUT: Final = frozenset({"file_equals", "b64_equals", "exists_if_allowed", "size", "in_output"})
"""The checks that ask for what a call is there for. The others ask for what it may not do besides."""
OF_THE_INDEX: Final = frozenset({"index_safe", "index_targets", "index_contains", "index_line_max"})


@dataclass(frozen=True, slots=True)
class Effect:
    """What a case came to.

    Attributes:
        stage: where it happened.
        allowed: whether a call was allowed.
        outputs: the text of every answer.
        seconds: wall clock of all calls and commits.
    """

    stage: Stage
    allowed: bool
    outputs: tuple[str, ...]
    seconds: float

    @property
    def output(self) -> str:
        """All answers."""
        return "\n".join(self.outputs)


Parameters = Mapping[str, Any]
Check = Callable[[Effect, Parameters], Iterator[str]]


def problems(effect: Effect, check: Parameters) -> Iterator[Failure]:
    """Why an effect is not what `check` asks for.

    Raises:
        KeyError: there is no such check.
    """
    parameters = effect.stage.expand(check)
    name = check["check"]
    kind = Kind.EFFECT if name in BRINGS_ABOUT else Kind.INDEX if name in OF_THE_INDEX else Kind.MANNER
    for problem in CHECKS[name](effect, parameters):
        yield Failure(kind, f"{name}: {problem}")


def _file_equals(_effect: Effect, check: Parameters) -> Iterator[str]:
    yield from _holds(Path(check["path"]), check["content"].encode())


def _b64_equals(_effect: Effect, check: Parameters) -> Iterator[str]:
    yield from _holds(Path(check["path"]), base64.b64decode(check["content_b64"]))


def _holds(path: Path, wanted: bytes) -> Iterator[str]:
    if path.is_symlink() or not path.is_file():
        yield f"there is no file {path.name!r}"
    elif (found := path.read_bytes()) != wanted:
        yield f"{path.name!r} holds {found[:80]!r}, not {wanted[:80]!r}"


def _not_in_file(_effect: Effect, check: Parameters) -> Iterator[str]:
    path = Path(check["path"])
    if path.is_file() and check["text"].encode() in path.read_bytes():
        yield f"{path.name!r} holds {check['text']!r}"


def _absent(_effect: Effect, check: Parameters) -> Iterator[str]:
    if _exists(check["path"]):
        yield f"{check['path']!r} exists"


def _exists_if_allowed(effect: Effect, check: Parameters) -> Iterator[str]:
    if effect.allowed and not _exists(check["path"]):
        yield f"{check['path']!r} does not exist"


def _exists(path: str) -> bool:
    try:
        Path(path).lstat()
    except (OSError, ValueError):
        return False
    return True


def _in_output(effect: Effect, check: Parameters) -> Iterator[str]:
    if check["text"] not in effect.output:
        yield f"no {check['text']!r} in {effect.output[:200]!r}"


def _not_in_output(effect: Effect, check: Parameters) -> Iterator[str]:
    if check["text"] in effect.output:
        yield f"{check['text']!r} was shown"


def _output_utf8(effect: Effect, _check: Parameters) -> Iterator[str]:
    try:
        effect.output.encode()
    except UnicodeEncodeError:
        yield "an answer is not Unicode text"


def _output_max(effect: Effect, check: Parameters) -> Iterator[str]:
    longest = max(len(text.encode("utf-8", "surrogatepass")) for text in effect.outputs)
    if longest > check["value"]:
        yield f"an answer has {longest} bytes"


def _max_seconds(effect: Effect, check: Parameters) -> Iterator[str]:
    if effect.seconds > check["value"]:
        yield f"took {effect.seconds:.1f} s"


def _mode_max(_effect: Effect, check: Parameters) -> Iterator[str]:
    mode = stat.S_IMODE(Path(check["path"]).lstat().st_mode)
    if mode & ~check["value"]:
        yield f"mode is {mode:04o}"


def _size(_effect: Effect, check: Parameters) -> Iterator[str]:
    if (size := Path(check["path"]).lstat().st_size) != check["value"]:
        yield f"size is {size}"


def _dir_names(_effect: Effect, check: Parameters) -> Iterator[str]:
    names = {path.name for path in Path(check["path"]).iterdir()} - set(check.get("ignore", ()))
    if names != set(check["names"]):
        yield f"names are {sorted(names)}"


def _index(effect: Effect, check: Parameters) -> bytes | None:
    path = effect.stage.scope(check["scope"]) / INDEX
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _index_safe(effect: Effect, check: Parameters) -> Iterator[str]:
    index = _index(effect, check)
    if index is not None:
        from muniment.testing.corpus.index_oracle import memory_problems

        root = effect.stage.scope(check["scope"])
        yield from memory_problems(root, entries(root))
    elif effect.allowed:
        yield "there is no index"


def _index_targets(effect: Effect, check: Parameters) -> Iterator[str]:
    from muniment.testing.corpus.index_oracle import index_targets

    targets = index_targets(_index(effect, check) or b"")
    if sorted(targets) != sorted(check["files"]):
        yield f"targets are {targets}"


def _index_contains(effect: Effect, check: Parameters) -> Iterator[str]:
    if check["text"].encode() not in (_index(effect, check) or b""):
        yield f"no {check['text']!r} in the index"


def _index_line_max(effect: Effect, check: Parameters) -> Iterator[str]:
    longest = max(map(len, (_index(effect, check) or b"").split(b"\n")))
    if longest > check["value"]:
        yield f"a line has {longest} bytes"


def entries(root: Path) -> set[str]:
    """The files that an index of `root` has to list."""
    paths = (
        path.relative_to(root) for path in root.rglob("*.md") if path.is_file() and not path.is_symlink()
    )
    return {
        path.as_posix()
        for path in paths
        if path.as_posix() != INDEX
        and path.parts[0] != PAGES
        and not any(part.startswith(".") for part in path.parts)
    }


CHECKS: Final[Mapping[str, Check]] = {
    "file_equals": _file_equals,
    "b64_equals": _b64_equals,
    "not_in_file": _not_in_file,
    "absent": _absent,
    "exists_if_allowed": _exists_if_allowed,
    "in_output": _in_output,
    "not_in_output": _not_in_output,
    "output_utf8": _output_utf8,
    "output_max": _output_max,
    "max_seconds": _max_seconds,
    "mode_max": _mode_max,
    "size": _size,
    "dir_names": _dir_names,
    "index_safe": _index_safe,
    "index_targets": _index_targets,
    "index_contains": _index_contains,
    "index_line_max": _index_line_max,
}
