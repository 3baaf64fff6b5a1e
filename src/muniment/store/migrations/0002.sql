CREATE TABLE task (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    workspace TEXT NOT NULL,     -- key, see `projects.Binding.key`
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    token TEXT NOT NULL,         -- name of the token that asked
    client TEXT,                 -- id that it gave
    trust TEXT NOT NULL,
    arguments TEXT,              -- JSON; NULL once it is over
    shown TEXT NOT NULL,         -- JSON
    repeat TEXT UNIQUE,          -- keyed digest of originator and idempotency key
    repeated TEXT,               -- keyed digest of what was asked with that key
    attempt INTEGER NOT NULL DEFAULT 0,
    claim INTEGER NOT NULL DEFAULT 0,  -- number of its last claim; never used again
    created TEXT NOT NULL,
    updated TEXT NOT NULL,
    cancelled_by TEXT,           -- JSON: name of a token, id of a client
    result TEXT,                 -- JSON
    error TEXT                   -- JSON
) STRICT;
CREATE INDEX task_pending ON task (workspace, seq) WHERE status IN ('queued', 'running');
CREATE INDEX task_of_workspace ON task (workspace, seq);
CREATE INDEX task_over ON task (workspace, token, seq)
    WHERE status IN ('completed', 'failed', 'cancelled');
CREATE TABLE event (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    type TEXT NOT NULL,
    task TEXT NOT NULL,
    workspace TEXT,              -- NULL: of every workspace that binds one of the roots
    roots TEXT NOT NULL,         -- JSON: keys of the roots that changed
    token TEXT,                  -- who asked for the task, as there
    client TEXT,
    data TEXT NOT NULL           -- JSON
) STRICT;
CREATE TABLE series (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch TEXT NOT NULL,         -- which events the numbers are of
    marked INTEGER               -- ctime in ns of the file that is kept beside; NULL: none yet
) STRICT;
INSERT INTO series VALUES (1, '', NULL);
CREATE TABLE token (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE, -- keyed
    clients TEXT NOT NULL,       -- JSON: ids that it may give
    trust TEXT NOT NULL,
    at TEXT NOT NULL
) STRICT;
