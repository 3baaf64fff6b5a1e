"""What a run may do, as data that a person reviews: path grammar, patterns, verdicts, policy files.

Pure: values in, values out; only `load` reads, and only policy files that it is told to read.

- `grammar`: the one way from text to `CanonicalPath`. Start reading here.
- `pattern`: the dialect of `paths`, and its two matchers.
- `model`: the effective `Policy` that a run carries; `tables`: what may stand in a policy file.
- `decide`: (verb, path) → `Allow` or `Deny`.
- `meet`: how policies combine; the result grants no more than either.
- `load`: policy files → `Policy`, or `PolicyInvalid` and nothing runs.

What does not hold: nothing here knows whether a file exists, is a link, or where a scope lies on disk.
"""
