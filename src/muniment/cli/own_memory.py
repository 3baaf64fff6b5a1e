"""Show the memory that a coding tool keeps itself, and offer to import it.

Separate from `setup`, which changes the settings of the tool and imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from muniment.cli.terminal import confirm_change, print_failure, print_line
from muniment.content.gates import clean_foreign_line
from muniment.errors import MunimentError

if TYPE_CHECKING:
    from muniment.cli.options import MemoryFlags
    from muniment.integrations.coding_tools.own_memory import NoteSource, OwnMemory

MAX_LISTED: Final = 20
"""Maximum number of commands in the text output; `--json` lists all."""


def present_own_memory(memory: OwnMemory, title: str, *, can_ask: bool) -> int:
    """Print the memory of a coding tool; at a terminal, offer to import it. Return the exit code.

    Args:
        memory: the memory.
        title: the name of the tool.
        can_ask: whether the user may be asked; False: only the commands are printed.
    """
    summary = _summarize(memory.sources) if memory.sources else "no notes yet"
    print_line(f"{title} has its own memory: {summary}")
    for line in _describe_memory(memory, title):
        print_line(f"  {clean_foreign_line(line)}")
    sources = [each for each in memory.sources if each.can_import and each.notes != 0]
    if not sources or not can_ask or not confirm_change("import these notes now?"):
        return 0
    return max(_import_notes(each) for each in sources)


def _describe_memory(memory: OwnMemory, title: str) -> Iterator[str]:
    for each in memory.sources[:MAX_LISTED]:
        place = "" if each.can_import else f", in the directory of the project {each.path.parent.name}"
        yield f"to import it{place}: {each.command}"
    if len(memory.sources) > MAX_LISTED:
        yield f"and {len(memory.sources) - MAX_LISTED} more commands; --json lists them"
    if memory.is_on:
        yield f"it stays on, next to Muniment; to switch it off: {memory.switch}"
    else:
        yield f"it is switched off: {title} adds no notes by itself"
    if memory.remark:
        yield memory.remark


def _summarize(sources: tuple[NoteSource, ...]) -> str:
    files, projects = sum(each.files for each in sources), sum(each.is_project for each in sources)
    counted = [each.notes for each in sources if each.notes is not None]
    bound = "" if len(counted) == len(sources) else "more than "
    text = f"{bound}{_count(files, 'file')}, {bound}{_count(sum(counted), 'note')}"
    return f"{text} for {_count(projects, 'project')}" if projects else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _import_notes(source: NoteSource) -> int:
    from muniment.cli.moving import import_source

    where: MemoryFlags = {
        "workspace": source.workspace,
        "policy": None,
        "root": None,
        "color": None,
        "json": False,
    }
    try:
        return import_source(source.path, where, format=source.format).emit(as_json=False)
    except MunimentError as error:
        return print_failure(error, as_json=False, prefix="not imported")
