"""Forbidden things, tried: what shows on the spot that the fence holds, and layer by layer why.

Start with `attempt` (what an attempt is), then `table` (all of them; the acts stand in `files`, `network`,
`processes`, `memory` and `kernel`). `service` carries one out in a worker; `trial` sets the `stage`, tries
them all and judges what came of it.
"""

import muniment.fence  # noqa: F401  asks for the system
