"""The tables of both databases: the ledger's only ever grow by a further migration; the catalog is made anew.

Apart from `state.py`, which opens them: here is what a reader of a ledger has to know, and nothing that runs.
Times are ISO-8601 UTC with milliseconds; digests are 64 hexadecimal digits. `before` and `after` are whole
files, NULL where there is none. `from_base64` is a function that `open_ledger` gives to a migration.
"""

from __future__ import annotations

from typing import Final

LEDGER_MIGRATIONS: Final = (
    """
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
    """,
    """
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
    """,
    """
    ALTER TABLE token ADD COLUMN hello BLOB;  -- `names.hello_key` of it; NULL: made before there was one
    """,
    """
    ALTER TABLE change_set ADD COLUMN review TEXT;  -- for which it waits: not begun, and no history
    CREATE TABLE claim (             -- what a change-set that waits rests on besides its changes
        change_set INTEGER NOT NULL REFERENCES change_set ON DELETE CASCADE,
        position INTEGER NOT NULL,
        root TEXT NOT NULL REFERENCES root,
        scope TEXT NOT NULL,
        rel TEXT NOT NULL,
        digest TEXT,                 -- NULL: no such file
        PRIMARY KEY (change_set, position)
    ) STRICT;
    CREATE VIEW step AS              -- all that was done or begun, file by file
        SELECT change.*, task, kind, at, done, change_set.trust AS asked, decided_by, policy, fact, undoes
        FROM change JOIN change_set ON change_set.id = change_set WHERE review IS NULL;
    CREATE VIEW source AS            -- where bytes at a path are from
        SELECT root, rel, digest, known.trust, known.task, known.decided_by, known.policy, known.at,
            kind, fact
        FROM provenance AS known LEFT JOIN change_set ON change_set.task = known.task
        UNION ALL
        SELECT root, rel, after_digest, trust, task, decided_by, policy, at, kind, fact
        FROM step WHERE done IS NULL AND undoes IS NULL;
    ALTER TABLE review RENAME TO review_before;
    CREATE TABLE review (
        id TEXT PRIMARY KEY,
        task TEXT NOT NULL,          -- that asked, as its kind
        kind TEXT NOT NULL,
        at TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'pending',
        reasons TEXT NOT NULL,       -- JSON
        policy TEXT,                 -- digest of the one under which it was asked for
        token TEXT,                  -- name of the token that asked
        digest TEXT NOT NULL,
        outcome TEXT                 -- task of the approval
    ) STRICT;
    CREATE INDEX change_set_of_review ON change_set (review) WHERE review IS NOT NULL;
    INSERT INTO review
        SELECT id, task, kind, at, state, reasons, json_extract(proposal, '$.policy'),
            json_extract(proposal, '$.by'), digest, outcome
        FROM review_before ORDER BY rowid;
    CREATE TEMP VIEW old AS SELECT id, kind, proposal, json_extract(proposal, '$.origin') AS run
        FROM main.review_before WHERE proposal IS NOT NULL;
    INSERT INTO change_set (task, kind, at, trust, decided_by, policy, fact, undoes, token, review)
        SELECT 'review:' || id, kind, json_extract(run, '$[2]'), json_extract(run, '$[3]'),
            json_extract(run, '$[4]'), json_extract(run, '$[5]'), json_extract(run, '$[6]'),
            json_extract(run, '$[7]'), '', id
        FROM old;
    CREATE TEMP VIEW file AS         -- what each of them names, and which of its lists does
        SELECT change_set.id AS change_set, list.key AS list, item.key AS number, proposal,
            json_extract(item.value, '$[0]') AS named, json_extract(item.value, '$[1]') AS digest,
            json_extract(item.value, '$[2]') AS after_digest
        FROM old JOIN change_set ON review = old.id, json_each(proposal) AS list,
            json_each(list.value) AS item
        WHERE list.key IN ('changes', 'removals', 'claims');
    CREATE TEMP VIEW spelled AS      -- a worker's words for a path may begin otherwise
        SELECT *, CASE WHEN named GLOB '/memories/*' THEN substr(named, 11)
            WHEN named GLOB '/*' THEN substr(named, 2) ELSE named END AS text
        FROM file;
    CREATE TEMP VIEW placed AS
        SELECT spelled.*, scope.value AS root, scope.key AS scope, substr(text, length(scope.key) + 2) AS rel
        FROM spelled, json_each(proposal, '$.roots') AS scope
        WHERE substr(text, 1, length(scope.key) + 1) = scope.key || '/';
    INSERT INTO change
        SELECT change_set,
            number + (list = 'removals') * json_array_length(proposal, '$.changes'),
            root, scope, rel, NULL, digest,
            CASE list WHEN 'changes'
                THEN from_base64(json_extract(proposal, '$.texts[' || number || ']')) END,
            after_digest, '[]',
            (SELECT value FROM json_each(proposal, '$.trusts') WHERE key = text)
        FROM placed WHERE list <> 'claims';
    INSERT INTO claim SELECT change_set, number, root, scope, rel, digest FROM placed WHERE list = 'claims';
    DROP VIEW placed;
    DROP VIEW spelled;
    DROP VIEW file;
    DROP VIEW old;
    DROP TABLE review_before;
    """,
    """
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
    """,
    """
    CREATE INDEX provenance_by_digest ON provenance (digest);
    """,
    """
    ALTER TABLE series ADD COLUMN last INTEGER NOT NULL DEFAULT 0;  -- the number of the last event
    UPDATE series SET last = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0);
    """,
)
"""Each leads from the version of its index to the next."""

CATALOG_VERSION: Final = 8
"""Another version of the catalog is deleted, not migrated."""

CATALOG_SCHEMA: Final = """
    CREATE TABLE root (
        id TEXT PRIMARY KEY,         -- as in the ledger
        basis TEXT NOT NULL,         -- what rows but for vectors depend on besides their files
        model TEXT NOT NULL DEFAULT '',  -- which made its vectors; '' before there are any
        lacks INTEGER NOT NULL DEFAULT 0,  -- 1: entries came or changed meanwhile without one
        swept INTEGER NOT NULL DEFAULT 0  -- second since 1970 at which every file was asked last
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE directory (
        root TEXT NOT NULL,
        path TEXT NOT NULL,          -- inside the scope; '' is the root
        inode INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        ctime_ns INTEGER NOT NULL,
        racy INTEGER NOT NULL,       -- 1: what is above proves nothing; it is listed again at the next look
        names INTEGER NOT NULL,      -- how many it holds
        odd TEXT,                    -- why it was not listed; NULL: it was
        missed INTEGER NOT NULL,     -- 1: there may be entries in it that nobody saw
        PRIMARY KEY (root, path)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX directory_unproven ON directory (root, path) WHERE racy;
    CREATE TABLE name (              -- what is in a directory and no entry
        root TEXT NOT NULL,
        directory TEXT NOT NULL,
        name BLOB NOT NULL,          -- not always UTF-8
        odd TEXT,                    -- why it is no entry though it may look like one
        walked INTEGER NOT NULL,     -- 1: a directory that has a row of its own
        PRIMARY KEY (root, directory, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE entry (
        id INTEGER PRIMARY KEY,      -- the rowid of its full-text row
        root TEXT NOT NULL,
        rel TEXT NOT NULL,
        topic TEXT NOT NULL,         -- its directory inside the scope; '' for the root
        key TEXT NOT NULL,           -- SHA-256 of `rel`, hexadecimal: chooses the index page
        sort TEXT NOT NULL,          -- `rel` folded: order of the index
        inode INTEGER NOT NULL,
        size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        ctime_ns INTEGER NOT NULL,   -- 0: it changed so shortly before it was read that times prove nothing
        digest TEXT NOT NULL,        -- of the file; '' if it cannot be read
        name TEXT NOT NULL,
        description TEXT NOT NULL,
        type TEXT,
        keywords TEXT NOT NULL,      -- JSON
        trust TEXT NOT NULL,
        expires TEXT,
        ident TEXT,                  -- by its own provenance, which anybody may write
        updated TEXT NOT NULL DEFAULT '',  -- likewise, to the second; '' if it does not say
        sees TEXT NOT NULL DEFAULT '',  -- likewise: what it replaces or is about too, with spaces between
        readable INTEGER NOT NULL,
        held TEXT,                   -- the gate that holds its text back
        note TEXT NOT NULL,
        line TEXT NOT NULL,          -- of the index; '' once it has expired, for then it is in none
        line_bytes INTEGER NOT NULL,
        UNIQUE (root, rel)
    ) STRICT;
    CREATE INDEX entry_in_order ON entry (root, sort, rel);
    CREATE INDEX entry_by_weight ON entry (root, trust <> 'owner', updated DESC, sort, rel)
        WHERE line_bytes > 0;
    CREATE INDEX entry_of_page ON entry (root, topic, key, line_bytes);
    CREATE INDEX entry_that_ends ON entry (root, expires) WHERE expires > '' AND line_bytes > 0;
    CREATE INDEX entry_seen ON entry (root, topic, rel, inode, size, mtime_ns, ctime_ns);
    CREATE INDEX entry_in_time ON entry (root, mtime_ns, topic, length(rel), rel);
    CREATE TABLE saying (            -- what an entry says by itself, also one item of a list
        digest TEXT NOT NULL,        -- see `rows.saying_digest`
        entry INTEGER NOT NULL,
        PRIMARY KEY (digest, entry)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX saying_of ON saying (entry);
    CREATE TABLE vector (            -- what an entry means, where there is a model for that
        id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: another vector gets a new one
        entry INTEGER NOT NULL UNIQUE,
        value BLOB NOT NULL          -- one signed byte for each dimension
    ) STRICT;
    CREATE TABLE meant (             -- by which is known whether vectors came or went
        one INTEGER PRIMARY KEY CHECK (one = 1),
        series TEXT NOT NULL,        -- of which catalog
        changes INTEGER NOT NULL     -- counted by the triggers below
    ) STRICT;
    INSERT INTO meant VALUES (1, hex(randomblob(16)), 0);
    CREATE TRIGGER vector_came AFTER INSERT ON vector BEGIN
        UPDATE meant SET changes = changes + 1;
    END;
    CREATE TRIGGER vector_went AFTER DELETE ON vector BEGIN
        UPDATE meant SET changes = changes + 1;
    END;
    CREATE TABLE total (             -- kept by the triggers below
        root TEXT PRIMARY KEY,
        files INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TRIGGER entry_came AFTER INSERT ON entry BEGIN
        INSERT INTO total VALUES (new.root, 1, new.size)
            ON CONFLICT (root) DO UPDATE SET files = files + 1, bytes = bytes + new.size;
    END;
    CREATE TRIGGER entry_changed AFTER UPDATE OF size ON entry BEGIN
        UPDATE total SET bytes = bytes + new.size - old.size WHERE root = new.root;
    END;
    CREATE TRIGGER entry_went AFTER DELETE ON entry BEGIN
        UPDATE total SET files = files - 1, bytes = bytes - old.size WHERE root = old.root;
        DELETE FROM saying WHERE entry = old.id;
        DELETE FROM vector WHERE entry = old.id;
    END;
    CREATE TABLE page (
        root TEXT NOT NULL,
        topic TEXT NOT NULL,
        prefix TEXT NOT NULL,        -- of the keys of its entries
        entries INTEGER NOT NULL,
        bytes INTEGER NOT NULL,      -- of the lines of its entries
        rel TEXT NOT NULL,           -- its file
        slot TEXT NOT NULL,          -- SHA-256 of the file's name: chooses the page that links it
        PRIMARY KEY (root, topic, prefix)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX page_by_file ON page (root, rel);
    CREATE INDEX page_by_slot ON page (root, slot, entries);
    CREATE TABLE relisted (          -- entries whose line came, went or changed since the index was written
        id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: what is relisted once more gets a new one
        root TEXT NOT NULL,
        topic TEXT NOT NULL,
        key TEXT NOT NULL,
        UNIQUE (root, topic, key) ON CONFLICT REPLACE  -- so insert plainly, never OR IGNORE
    ) STRICT;
    CREATE TABLE written (           -- index files as they were last written: a shortcut, never a claim
        root TEXT NOT NULL,
        rel TEXT NOT NULL,
        digest TEXT NOT NULL,
        PRIMARY KEY (root, rel)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE planned (           -- index files that were about to be written when it was noted
        root TEXT NOT NULL,
        rel TEXT NOT NULL,
        digest TEXT NOT NULL,
        PRIMARY KEY (root, rel, digest)
    ) STRICT, WITHOUT ROWID;
    CREATE VIRTUAL TABLE text USING fts5 (
        name, description, body, context, tokenize = 'porter unicode61'
    );
    CREATE VIRTUAL TABLE word USING fts5vocab (text, 'row');  -- in how many rows a word stands
"""
