"""Switch a control off in the tests: replace it in the modules of Muniment for the duration of a block.

A control is a function that replaces an object of `muniment` with the code that would run without the
control. `switch_off` applies it in this process and, if the control requires it, in every zygote that starts
meanwhile, and so in the workers. The product has no such switch.

Imports only the standard library, because a zygote also imports this file.
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
        """Replace `module:attribute.attribute` of a module of `muniment`, or of another one with `=module`.

        With a leading `*`, replace it also in every module that imported it, including tests.
        """
        owner, name, real = _find(target)
        self.modules.add(target.lstrip("*").partition(":")[0])
        if target[0] == "*":
            self._put_everywhere(name, real, replacement)
            return
        is_own = name in vars(owner)  # Otherwise a class inherits it.
        self._undo.append(partial(setattr, owner, name, real) if is_own else partial(delattr, owner, name))
        setattr(owner, name, replacement)

    def wrap(self, target, make):
        """Replace an object with the result of `make` for the real one."""
        owner, name, _ = _find(target)
        self.put(target, make(getattr(owner, name)))

    def _put_everywhere(self, name, real, replacement):
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is real:
                self._undo.append(partial(setattr, module, name, real))
                setattr(module, name, replacement)

    def put_item(self, mapping, key, value):
        """Replace one item of a mapping."""
        real = mapping[key]
        self._undo.append(lambda: mapping.__setitem__(key, real))
        mapping[key] = value

    def add_undo(self, undo):
        """Add another undo function."""
        self._undo.append(undo)

    def disable(self, *names):
        """Also switch off other controls."""
        for name in names:
            load_controls()[name].off(self)

    def undo(self):
        """Undo all replacements."""
        while self._undo:
            self._undo.pop()()


def _find(target):
    module, _, attributes = target.lstrip("*").partition(":")
    *path, name = attributes.split(".")
    owner = importlib.import_module(module[1:] if module[0] == "=" else f"muniment.{module}")
    for step in path:
        owner = getattr(owner, step)
    # Read it statically from a class: a static method must not become a plain function.
    return owner, name, inspect.getattr_static(owner, name)


@dataclass(frozen=True)
class Control:
    """A mechanism that stops an attack, and the way to disable it.

    Attributes:
        effect: in one line, the behavior without it.
        in_workers: whether zygotes run without it, too.
        hangs_after: seconds after which a test without it counts as failed, because it waits or
            works forever; None: it does not hang, and a slow test proves nothing.
    """

    name: str
    off: Callable[[Patches], None]
    effect: str
    in_workers: bool
    hangs_after: float | None


_CONTROLS = {}
_off = []


def control(*, in_workers=False, hangs_after=None):
    """Register a function as the control of its name; its docstring states the effect in one line."""

    def register(off):
        effect = (off.__doc__ or "").strip()
        if not effect or "\n" in effect or off.__name__ in _CONTROLS:
            raise ValueError(f"{off.__name__} needs a docstring of one line and a unique name")
        _CONTROLS[off.__name__] = Control(off.__name__, off, effect, in_workers, hangs_after)
        return off

    return register


def add_controls(rows, **options):
    """Register controls that replace single objects, each with its effect and replacements.

    Objects are named as for `Patches.put`. A function of the patches may take the place of the replacements.
    """
    for name, (effect, replaced) in rows.items():

        def off(patches, replaced=replaced):
            if callable(replaced):
                replaced(patches)
                return
            for target, replacement in replaced.items():
                patches.put(target, replacement)

        off.__name__, off.__doc__ = name, effect
        control(**options)(off)


def replace_target(target, **options):
    """Register a function that replaces `target`, which is named as for `Patches.put`."""

    def register(function):
        add_controls({function.__name__: (function.__doc__ or "", {target: function})}, **options)
        return function

    return register


def wrap_target(target, **options):
    """Register a function that replaces `target` and receives the real one as its first argument."""

    def register(function):
        def make(real):
            return lambda *args, **kwargs: function(real, *args, **kwargs)

        def off(patches):
            patches.wrap(target, make)

        off.__name__, off.__doc__ = function.__name__, function.__doc__
        return control(**options)(off)

    return register


def do_nothing(*_, **__):
    """Return None."""


def return_true(*_, **__):
    """Return True."""
    return True


def return_false(*_, **__):
    """Return False."""
    return False


def return_argument(value, *_):
    """Return the first argument."""
    return value


def return_empty(*_, **__):
    """Return an empty tuple."""
    return ()


@cache
def load_controls():
    """Load all controls by name."""
    for module_path in sorted(Path(__file__).with_name("without").glob("*.py")):
        importlib.import_module(f"threats.without.{module_path.stem}")
    return _CONTROLS


@contextmanager
def switch_off(name):
    """Switch a control off inside the block."""
    from muniment.sandbox.fence import pool

    _import_all()
    chosen, patches, own = load_controls()[name], Patches(), None
    if chosen.in_workers:
        patches.put("sandbox.fence.pool:_CODE", source_for_children(name) + pool._CODE)
    _off.append(name)
    try:
        chosen.off(patches)
        if chosen.in_workers or any(each.startswith("sandbox.fence.") for each in patches.modules):
            own = pool.Zygote()  # Otherwise reuse the zygote of this process.
            patches.put("sandbox.fence.pool:_SHARED_ZYGOTE", own)
        yield
    finally:
        _off.remove(name)
        if own is not None:
            own.close()
        patches.undo()


@cache
def _import_all():
    """Import every module of Muniment: a later import would keep replaced objects."""
    import muniment

    for module in pkgutil.walk_packages(muniment.__path__, "muniment."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def source_for_children(name=None):
    """Return Python source that switches the same controls off in another process; usually empty.

    Args:
        name: a control; None: the ones that are off now.
    """
    names = _off if name is None else [name]
    # Tests inspect the memory of the process, so this code must leave nothing in it.
    return "".join(
        f"import sys; sys.path.extend(sys.argv[3:]); sys.path.append({TESTS!r})\n"
        f"from threats.switches import switch_off_permanently; switch_off_permanently({each!r})\n"
        "del switch_off_permanently; del sys.path[-len(sys.argv[3:]) - 1:]\n"
        for each in names
    )


def switch_off_permanently(name):
    """Switch a control off for the rest of this process, and unload these modules."""
    load_controls()[name].off(Patches())
    for module in [each for each in sys.modules if each.split(".")[0] == "threats"]:
        del sys.modules[module]
