"""Switching a control off: by the tests, in our own modules, for as long as a block lasts.

A control is a function that replaces something in `muniment` by what would stand there without the control.
`switched_off` applies it in this process and, where it says so, in every zygote that is started meanwhile,
and so in the workers. The product knows nothing of this: it has no switch.

Only the standard library is imported here, since a zygote imports this file, too.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

TESTS = str(Path(__file__).parents[1])
_AREAS = (
    "paths",
    "fence",
    "writing",
    "policies",
    "workers",
    "runs",
    "leaks",
    "store",
    "tidying",
    "daemon",
    "recall",
)


class Patches:
    """Replacements, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, target: str, replacement: Any) -> None:
        """Replace `module:attribute.attribute`."""
        owner, name, real = _found(target)
        self._undo.append(lambda: setattr(owner, name, real))
        setattr(owner, name, replacement)

    def wrap(self, target: str, make: Callable[[Any], Any]) -> None:
        """Replace `module:attribute` by what `make` makes of the real one."""
        owner, name, _ = _found(target)
        self.put(target, make(getattr(owner, name)))

    def everywhere(self, target: str, replacement: Any) -> None:
        """Replace `module:name` there and in every module that imported it, those of tests included."""
        _, name, real = _found(target)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is real:
                self._undo.append(partial(setattr, module, name, real))
                setattr(module, name, replacement)

    def item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Replace one item of a mapping."""
        real = mapping[key]
        self._undo.append(lambda: mapping.__setitem__(key, real))
        mapping[key] = value

    def then(self, undo: Callable[[], None]) -> None:
        """Have something else put back, too."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()


def _found(target: str) -> tuple[Any, str, Any]:
    module, _, attributes = target.partition(":")
    *path, name = attributes.split(".")
    owner: Any = importlib.import_module(module)
    for step in path:
        owner = getattr(owner, step)
    # From a class as it stands there: a static method must not come back as a plain function.
    return owner, name, vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)


@dataclass(frozen=True)
class Control:
    """Something that stops an attack, and how to go without it.

    Attributes:
        what: in a line, what is no longer done.
        in_workers: whether zygotes go without it, too.
        hangs_after: seconds after which a test without it has failed, since it waits or works without end;
            None: it does not, and one that takes long shows nothing.
    """

    name: str
    off: Callable[[Patches], None]
    what: str
    in_workers: bool
    hangs_after: float | None


_CONTROLS: dict[str, Control] = {}
_off: list[str] = []


def control(
    *, in_workers: bool = False, hangs_after: float | None = None
) -> Callable[[Callable[[Patches], None]], Callable[[Patches], None]]:
    """Make a function a control of its name. Its docstring says in a line what is no longer done."""

    def register(off: Callable[[Patches], None]) -> Callable[[Patches], None]:
        what = (off.__doc__ or "").strip()
        if not what or "\n" in what:
            raise ValueError(f"the control {off.__name__} says in one line what is no longer done")
        if off.__name__ in _CONTROLS:
            raise ValueError(f"two controls are called {off.__name__}")
        _CONTROLS[off.__name__] = Control(off.__name__, off, what, in_workers, hangs_after)
        return off

    return register


@cache
def controls() -> Mapping[str, Control]:
    """All of them, by name."""
    for area in _AREAS:
        importlib.import_module(f"threats.without.{area}")
    return _CONTROLS


@contextmanager
def switched_off(name: str) -> Iterator[None]:
    """Go without a control inside the block."""
    from muniment.confine import pool
    from muniment.confine import pool as process

    _import_all()
    chosen, patches = controls()[name], Patches()
    patches.put("muniment.confine.pool:_SHARED.zygote", None)
    if chosen.in_workers:
        patches.put("muniment.confine.pool:_CODE", source_for_children(name) + process._CODE)
    _off.append(name)
    try:
        chosen.off(patches)
        yield
    finally:
        _off.remove(name)
        if pool._SHARED.zygote is not None:
            pool._SHARED.zygote.close()
        patches.undo()


@cache
def _import_all() -> None:
    """Load every module of ours: one loaded later would keep what it imports while a control is off."""
    import muniment

    for module in pkgutil.walk_packages(muniment.__path__, "muniment."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def source_for_children(name: str | None = None) -> str:
    """Python source that makes another process go without what this one goes without; usually empty.

    Args:
        name: a control; None: those that are off now.
    """
    names = _off if name is None else [name]
    # Nothing of this may be left behind where a test looks at what the process holds.
    return "".join(
        f"import sys; sys.path.extend(sys.argv[3:]); sys.path.append({TESTS!r})\n"
        f"from threats.switches import switch_off_for_good; switch_off_for_good({each!r})\n"
        "del switch_off_for_good; del sys.path[-len(sys.argv[3:]) - 1:]\n"
        for each in names
    )


def switch_off_for_good(name: str) -> None:
    """Go without a control for the rest of this process, and forget these modules."""
    controls()[name].off(Patches())
    for module in [each for each in sys.modules if each.split(".")[0] == "threats"]:
        del sys.modules[module]
