"""`muniment edit`: one entry in the owner's editor, committed when it is closed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from muniment.cli.inspect import MemoryArguments, with_place
from muniment.cli.terminal import on_one_line, print_document, say, say_notes
from muniment.errors import ConfigInvalid, MunimentError
from muniment.jobs.edit import check_editable, edited
from muniment.jobs.place import Place


def edit_entry(where: MemoryArguments, unsafe_path: str) -> int:
    """Open one entry in `VISUAL` or `EDITOR`, and commit what was made of it; the exit code."""

    def body(place: Place) -> int:
        editor = _editor()
        path = place.path(unsafe_path)
        check_editable(place, path)
        before = place.read(path)
        directory = Path(tempfile.mkdtemp(prefix="muniment-edit-"))
        copy = directory / path.name
        copy.write_bytes(before)
        after = _after_editing(editor, copy)
        if after == before:
            shutil.rmtree(directory)
            if where.json:
                print_document({"task_id": None, "path": path.text, "notes": []})
            else:
                say("nothing was changed")
            return 0
        try:
            run, done = edited(place, path, before, after)
        except MunimentError:
            say_notes([f"what you wrote is kept in {copy}"])
            raise
        shutil.rmtree(directory)
        say_notes(() if where.json else done.notes)
        if where.json:
            print_document({"task_id": run.task, "path": path.text, "notes": list(done.notes)})
        else:
            say(f"saved (changed): {on_one_line(path.text)}")
            say(f"  to take it back: muniment undo {run.task}")
        return 0

    return with_place(where, body, "not saved")


def _editor() -> list[str]:
    """The command that the environment names.

    Raises:
        ConfigInvalid: there is none, or it is no command.
    """
    try:
        editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    except ValueError:
        editor = []
    if not editor:
        raise ConfigInvalid("no editor is named; set VISUAL or EDITOR, such as EDITOR=nano")
    return editor


def _after_editing(editor: list[str], copy: Path) -> bytes:
    """What stands in a file once an editor was closed.

    Raises:
        ConfigInvalid: it could not be started, or says that it failed.
    """
    try:
        ended = subprocess.run([*editor, str(copy)], check=False).returncode  # noqa: S603  the owner named it
        if ended == 0:
            return copy.read_bytes()
        problem = f"ended with {ended}"
    except OSError as error:
        problem = f"cannot be used: {error.strerror}"
    where = f", the copy is {copy}" if copy.exists() else ""
    raise ConfigInvalid(f"the editor {editor[0]!r} {problem}; nothing was saved{where}")
