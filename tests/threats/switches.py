"""Switching a control off: by the tests, in our own modules, for as long as a block lasts.

A control is a function that replaces something in `muniment` by what would stand there without the control.
`switched_off` applies it in this process and, where it says so, in every zygote that is started meanwhile,
and so in the workers. The product knows nothing of this: it has no switch.

Only the standard library is imported here, since a zygote imports this file, too.
"""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

TESTS = str(Path(__file__).parents[1])


class Patches:
    """Replacements, undone in reverse order."""

    def __init__(self):
        self._undo, self.modules = [], set()

    def put(self, target, replacement):
        """Replace `module:attribute.attribute` of a module below `muniment`, or of another, as `=module`.

        With a `*` before, it is replaced in every module that imported it, too, those of tests included.
        """
        owner, name, real = _found(target)
        self.modules.add(target.lstrip("*").partition(":")[0])
        if target[0] == "*":
            self._everywhere(name, real, replacement)
            return
        is_own = name in vars(owner)  # Else a class has it from the one above.
        self._undo.append(partial(setattr, owner, name, real) if is_own else partial(delattr, owner, name))
        setattr(owner, name, replacement)

    def wrap(self, target, make):
        """Replace an object by what `make` makes of the real one."""
        owner, name, _ = _found(target)
        self.put(target, make(getattr(owner, name)))

    def _everywhere(self, name, real, replacement):
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is real:
                self._undo.append(partial(setattr, module, name, real))
                setattr(module, name, replacement)

    def item(self, mapping, key, value):
        """Replace one item of a mapping."""
        real = mapping[key]
        self._undo.append(lambda: mapping.__setitem__(key, real))
        mapping[key] = value

    def then(self, undo):
        """Have something else put back, too."""
        self._undo.append(undo)

    def also(self, *names):
        """Go without other controls as well."""
        for name in names:
            controls()[name].off(self)

    def undo(self):
        """Put everything back."""
        while self._undo:
            self._undo.pop()()


def _found(target):
    module, _, attributes = target.lstrip("*").partition(":")
    *path, name = attributes.split(".")
    owner = importlib.import_module(module[1:] if module[0] == "=" else f"muniment.{module}")
    for step in path:
        owner = getattr(owner, step)
    # From a class as it stands there: a static method must not come back as a plain function.
    return owner, name, inspect.getattr_static(owner, name)


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


_CONTROLS = {}
_off = []


def control(*, in_workers=False, hangs_after=None):
    """Make a function a control of its name. Its docstring says in a line what is no longer done."""

    def register(off):
        what = (off.__doc__ or "").strip()
        if not what or "\n" in what or off.__name__ in _CONTROLS:
            raise ValueError(f"{off.__name__} says in one line what is not done, under its own name")
        _CONTROLS[off.__name__] = Control(off.__name__, off, what, in_workers, hangs_after)
        return off

    return register


def table(rows, **terms):
    """Make controls that replace single objects: what is no longer done, and by what they are replaced.

    Objects are named as for `Patches.put`. In the place of all may stand a function of the patches.
    """
    for name, (what, replaced) in rows.items():

        def off(patches, replaced=replaced):
            if callable(replaced):
                replaced(patches)
                return
            for target, replacement in replaced.items():
                patches.put(target, replacement)

        off.__name__, off.__doc__ = name, what
        control(**terms)(off)


def instead(target, **terms):
    """Make a control of a function that takes the place of `target`, which is named as in a `table`."""

    def register(function):
        table({function.__name__: (function.__doc__ or "", {target: function})}, **terms)
        return function

    return register


def around(target, **terms):
    """Like `instead`, of a function that is given the real one first."""

    def register(function):
        def make(real):
            return lambda *args, **named: function(real, *args, **named)

        def off(patches):
            patches.wrap(target, make)

        off.__name__, off.__doc__ = function.__name__, function.__doc__
        return control(**terms)(off)

    return register


def none(*_, **__):
    """Do nothing, and find nothing."""


def true(*_, **__):
    """Yes."""
    return True


def false(*_, **__):
    """No."""
    return False


def same(value, *_):
    """What was given, as it is."""
    return value


def nothing(*_, **__):
    """An empty answer."""
    return ()


@cache
def controls():
    """All of them, by name."""
    for area in sorted(Path(__file__).with_name("without").glob("*.py")):
        importlib.import_module(f"threats.without.{area.stem}")
    return _CONTROLS


@contextmanager
def switched_off(name):
    """Go without a control inside the block."""
    from muniment.sandbox.fence import pool

    _import_all()
    chosen, patches, own = controls()[name], Patches(), None
    if chosen.in_workers:
        patches.put("sandbox.fence.pool:_CODE", source_for_children(name) + pool._CODE)
    _off.append(name)
    try:
        chosen.off(patches)
        if chosen.in_workers or any(each.startswith("sandbox.fence.") for each in patches.modules):
            own = pool.Zygote()  # Else that of this process serves, which to start takes half a second.
            patches.put("sandbox.fence.pool:_SHARED", own)
        yield
    finally:
        _off.remove(name)
        if own is not None:
            own.close()
        patches.undo()


@cache
def _import_all():
    """Load every module of ours: one loaded later would keep what it imports while a control is off."""
    import muniment

    for module in pkgutil.walk_packages(muniment.__path__, "muniment."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def source_for_children(name=None):
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


def switch_off_for_good(name):
    """Go without a control for the rest of this process, and forget these modules."""
    controls()[name].off(Patches())
    for module in [each for each in sys.modules if each.split(".")[0] == "threats"]:
        del sys.modules[module]
