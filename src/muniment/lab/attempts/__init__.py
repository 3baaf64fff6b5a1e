"""Forbidden things, tried: what shows on the spot that the fence holds, and layer by layer why.

Start with `attempt`: all of them in one table, how each is done, and a worker that does it. `trial` sets the
stage, tries them all and judges what came of it. `offer` is what a system has for the fence, and what to do.
"""

import muniment.sandbox.fence  # noqa: F401  asks for the system
