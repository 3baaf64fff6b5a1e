-- The tables of a ledger in SQLite, which only ever grow by a further file. Those of one that nodes share are
-- in `fleet/migrations`. Times are ISO-8601 UTC with milliseconds; digests are 64 hexadecimal digits; `before`
-- and `after` are whole files, NULL where there is none.

CREATE TABLE root (
    id TEXT PRIMARY KEY,
    path BLOB NOT NULL UNIQUE    -- real; names need not be UTF-8
) STRICT;
CREATE TABLE change_set (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    at TEXT NOT NULL,
    done TEXT,                   -- NULL: an intent, which recovery takes back
    trust TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    policy TEXT NOT NULL,
    fact TEXT,                   -- keyed digest of what was asked
    undoes TEXT,                 -- task whose changes this one takes back
    token TEXT NOT NULL,         -- with which all its temporary names begin
    notes TEXT NOT NULL DEFAULT '[]'   -- JSON
) STRICT;
CREATE INDEX unfinished ON change_set (id) WHERE done IS NULL;
CREATE TABLE change (
    change_set INTEGER NOT NULL REFERENCES change_set ON DELETE CASCADE,
    position INTEGER NOT NULL,
    root TEXT NOT NULL REFERENCES root,
    scope TEXT NOT NULL,
    rel TEXT NOT NULL,
    before BLOB,
    before_digest TEXT,
    after BLOB,
    after_digest TEXT,
    made TEXT NOT NULL,          -- JSON: directories above it that did not exist
    trust TEXT,                  -- of `after`
    PRIMARY KEY (change_set, position)
) STRICT;
CREATE INDEX change_by_path ON change (root, rel);
CREATE TABLE provenance (
    root TEXT NOT NULL REFERENCES root,
    rel TEXT NOT NULL,
    digest TEXT NOT NULL,
    trust TEXT NOT NULL,
    task TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    policy TEXT NOT NULL,
    at TEXT NOT NULL,
    PRIMARY KEY (root, rel, digest)
) STRICT, WITHOUT ROWID;
CREATE TABLE review (
    id TEXT PRIMARY KEY,
    task TEXT NOT NULL,
    kind TEXT NOT NULL,
    at TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending',
    reasons TEXT NOT NULL,       -- JSON
    proposal TEXT,               -- JSON: changes, claims, terms
    digest TEXT NOT NULL,
    outcome TEXT                 -- task of the approval
) STRICT;
CREATE TABLE forgotten (
    fact TEXT PRIMARY KEY,       -- keyed digest of what must not be learnt again
    at TEXT NOT NULL,
    task TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE record (
    seq INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    task TEXT,
    body TEXT,                   -- JSON; NULL once erased
    body_mac BLOB NOT NULL,
    mac BLOB NOT NULL            -- over the one before and all of this but `body`
) STRICT;
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    seq INTEGER NOT NULL,
    mac BLOB NOT NULL
) STRICT;
