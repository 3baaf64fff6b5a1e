CREATE TABLE session (           -- a conversation of a host that only calls a hook
    id TEXT PRIMARY KEY,         -- keyed digest of what its host calls it
    at TEXT NOT NULL             -- when it was told something last
) STRICT, WITHOUT ROWID;
CREATE INDEX session_in_time ON session (at);
CREATE TABLE told (              -- what it was told
    number INTEGER PRIMARY KEY,  -- in this order
    session TEXT NOT NULL REFERENCES session ON DELETE CASCADE,
    root TEXT NOT NULL,
    rel TEXT NOT NULL,
    digest TEXT NOT NULL,
    UNIQUE (session, root, rel) ON CONFLICT REPLACE
) STRICT;
