"""Switch a control off: by the tests, in Muniment's modules, for the duration of a block.

A control is a function that replaces an object in `muniment` by its equivalent without the control.
`switched_off` applies it in this process and, if the control requires it, in every zygote started meanwhile,
and so in the workers. The product has no such switch.

This file imports only the standard library, because a zygote imports it too.
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
        """Replace `module:attribute.attribute` of a module below `muniment`, or of another one as `=module`.

        With a leading `*` it is replaced in every module that imported it, tests included.
        """
        owner, name, real = _found(target)
        self.modules.add(target.lstrip("*").partition(":")[0])
        if target[0] == "*":
            self._everywhere(name, real, replacement)
            return
        is_own = name in vars(owner)  # Otherwise a class inherits it.
        self._undo.append(partial(setattr, owner, name, real) if is_own else partial(delattr, owner, name))
        setattr(owner, name, replacement)

    def wrap(self, target, make):
        """Replace an object by the result of `make`, which receives the real one."""
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
        """Add a function that restores something else."""
        self._undo.append(undo)

    def also(self, *names):
        """Switch other controls off too."""
        for name in names:
            controls()[name].off(self)

    def undo(self):
        """Restore everything."""
        while self._undo:
            self._undo.pop()()


def _found(target):
    module, _, attributes = target.lstrip("*").partition(":")
    *path, name = attributes.split(".")
    owner = importlib.import_module(module[1:] if module[0] == "=" else f"muniment.{module}")
    for step in path:
        owner = getattr(owner, step)
    # Read from the class: a static method must not become a plain function.
    return owner, name, inspect.getattr_static(owner, name)


@dataclass(frozen=True)
class Control:
    """A control that stops an attack, and the function that switches it off.

    Attributes:
        what: the effect of switching it off, in one line.
        in_workers: True if zygotes switch it off too.
        hangs_after: seconds after which a test without it has failed, because it waits or works without end;
            None: it does not hang, and a timeout proves nothing.
    """

    name: str
    off: Callable[[Patches], None]
    what: str
    in_workers: bool
    hangs_after: float | None


_CONTROLS = {}
_off = []


def control(*, in_workers=False, hangs_after=None):
    """Register a function as the control of its name. Its docstring is one line: the effect of switching it
    off.
    """

    def register(off):
        what = (off.__doc__ or "").strip()
        if not what or "\n" in what or off.__name__ in _CONTROLS:
            raise ValueError(
                f"{off.__name__} needs a unique name and a docstring of one line with its effect"
            )
        _CONTROLS[off.__name__] = Control(off.__name__, off, what, in_workers, hangs_after)
        return off

    return register


def table(rows, **terms):
    """Create controls that replace single objects: the effect, and the replacements.

    Objects are named as for `Patches.put`. A function of the patches may be given instead of the
    replacements.
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
    """Create a control from a function that replaces `target`, which is named as in a `table`."""

    def register(function):
        table({function.__name__: (function.__doc__ or "", {target: function})}, **terms)
        return function

    return register


def around(target, **terms):
    """Work like `instead`, but pass the real object as the first argument."""

    def register(function):
        def make(real):
            return lambda *args, **named: function(real, *args, **named)

        def off(patches):
            patches.wrap(target, make)

        off.__name__, off.__doc__ = function.__name__, function.__doc__
        return control(**terms)(off)

    return register


def none(*_, **__):
    """Do nothing, and return None."""


def true(*_, **__):
    """Return True."""
    return True


def false(*_, **__):
    """Return False."""
    return False


def same(value, *_):
    """Return the argument unchanged."""
    return value


def nothing(*_, **__):
    """Return an empty tuple."""
    return ()


@cache
def controls():
    """Return all controls by name."""
    for area in sorted(Path(__file__).with_name("without").glob("*.py")):
        importlib.import_module(f"threats.without.{area.stem}")
    return _CONTROLS


@contextmanager
def switched_off(name):
    """Switch a control off inside the block."""
    from muniment.sandbox.fence import pool

    _import_all()
    chosen, patches, own = controls()[name], Patches(), None
    if chosen.in_workers:
        patches.put("sandbox.fence.pool:_CODE", source_for_children(name) + pool._CODE)
    _off.append(name)
    try:
        chosen.off(patches)
        if chosen.in_workers or any(each.startswith("sandbox.fence.") for each in patches.modules):
            own = pool.Zygote()  # Otherwise this process's zygote is used; a start takes half a second.
            patches.put("sandbox.fence.pool:_SHARED", own)
        yield
    finally:
        _off.remove(name)
        if own is not None:
            own.close()
        patches.undo()


@cache
def _import_all():
    """Load every module of Muniment: one loaded later would keep its imports while a control is off."""
    import muniment

    for module in pkgutil.walk_packages(muniment.__path__, "muniment."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def source_for_children(name=None):
    """Return Python source that switches the same controls off in another process; usually empty.

    Args:
        name: a control; None: all controls that are off now.
    """
    names = _off if name is None else [name]
    # Remove all names again: a test checks the state of the process.
    return "".join(
        f"import sys; sys.path.extend(sys.argv[3:]); sys.path.append({TESTS!r})\n"
        f"from threats.switches import switch_off_for_good; switch_off_for_good({each!r})\n"
        "del switch_off_for_good; del sys.path[-len(sys.argv[3:]) - 1:]\n"
        for each in names
    )


def switch_off_for_good(name):
    """Switch a control off for the rest of this process, and unload these modules."""
    controls()[name].off(Patches())
    for module in [each for each in sys.modules if each.split(".")[0] == "threats"]:
        del sys.modules[module]
