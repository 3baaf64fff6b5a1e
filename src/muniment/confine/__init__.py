"""The only code that opens memory files: roots, and the worker's process.

Start with `root` (what a handle promises), then `openat2` and `walk` (the two ways to keep it),
`binding` (where a handle comes from) and `writing` (the broker's side; never in a worker). Processes: `pool`
(where workers come from), `worker` (one of them, as the broker sees it), `zygote` (the other end).
"""
