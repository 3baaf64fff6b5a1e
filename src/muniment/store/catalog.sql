-- The tables of the catalog, which is recreated and never migrated: `state.CATALOG_VERSION`.

CREATE TABLE root (
    id TEXT PRIMARY KEY,         -- as in the ledger
    basis TEXT NOT NULL,         -- inputs of the rows (without vectors) that are not files
    model TEXT NOT NULL DEFAULT '',  -- that computed its vectors; '' before the first
    lacks INTEGER NOT NULL DEFAULT 0,  -- 1: entries were added or changed without a vector
    swept INTEGER NOT NULL DEFAULT 0  -- second since 1970 when every file was checked last
) STRICT, WITHOUT ROWID;
CREATE TABLE directory (
    root TEXT NOT NULL,
    path TEXT NOT NULL,          -- inside the scope; '' is the root
    inode INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    racy INTEGER NOT NULL,       -- 1: the columns above prove nothing; list it again at the next refresh
    names INTEGER NOT NULL,      -- number of names in it
    odd TEXT,                    -- why it was not listed; NULL: it was
    missed INTEGER NOT NULL,     -- 1: it may contain entries that were not found
    PRIMARY KEY (root, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX directory_unproven ON directory (root, path) WHERE racy;
CREATE TABLE name (              -- names in a directory that are not entries
    root TEXT NOT NULL,
    directory TEXT NOT NULL,
    name BLOB NOT NULL,          -- not always UTF-8
    odd TEXT,                    -- why it is not an entry although it looks like one
    walked INTEGER NOT NULL,     -- 1: a directory with a row in `directory`
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
    ctime_ns INTEGER NOT NULL,   -- 0: it changed just before it was read, so times prove nothing
    digest TEXT NOT NULL,        -- of the file; '' if it cannot be read
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    type TEXT,
    keywords TEXT NOT NULL,      -- JSON
    trust TEXT NOT NULL,
    expires TEXT,                -- the last day on which it is shown, here; or a time, in UTC
    ends TEXT,                   -- the last day on which it is valid, by its text
    ident TEXT,                  -- from its provenance, which any program may write
    handle TEXT NOT NULL DEFAULT '',  -- of the ident, or of the path; '' if the text is withheld
    updated TEXT NOT NULL DEFAULT '',  -- also from there, to the second; '' if missing
    sees TEXT NOT NULL DEFAULT '',  -- also from there: replaced and related entries, separated by spaces
    readable INTEGER NOT NULL,
    held TEXT,                   -- the gate that withholds its text
    mixed INTEGER NOT NULL DEFAULT 0,  -- 1: it has sentences of the owner, and others of lower trust
    note TEXT NOT NULL,
    line TEXT NOT NULL,          -- of the index; '' after it has expired, when no index lists it
    line_bytes INTEGER NOT NULL,
    UNIQUE (root, rel)
) STRICT;
CREATE INDEX entry_in_order ON entry (root, sort, rel);
CREATE INDEX entry_by_weight ON entry (root, trust <> 'owner', updated DESC, sort, rel)
    WHERE line_bytes > 0;
CREATE INDEX entry_of_page ON entry (root, topic, key, line_bytes);
CREATE INDEX entry_that_ends ON entry (root, expires) WHERE expires > '' AND line_bytes > 0;
CREATE INDEX entry_seen ON entry (root, topic, rel, inode, size, mtime_ns, ctime_ns);
CREATE INDEX entry_by_handle ON entry (root, handle) WHERE handle <> '';
CREATE INDEX entry_withheld ON entry (root) WHERE held IS NOT NULL OR NOT readable;
CREATE INDEX entry_in_time ON entry (root, mtime_ns, topic, length(rel), rel);
CREATE TABLE saying (            -- a phrase of an entry, or one item of a list
    digest TEXT NOT NULL,        -- see `rows.saying_digest`
    entry INTEGER NOT NULL,
    PRIMARY KEY (digest, entry)
) STRICT, WITHOUT ROWID;
CREATE INDEX saying_of ON saying (entry);
CREATE TABLE vector (            -- the meaning of an entry, if there is a model
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: another vector gets a new one
    entry INTEGER NOT NULL UNIQUE,
    value BLOB NOT NULL          -- one signed byte for each dimension
) STRICT;
CREATE TABLE meant (             -- reveals whether vectors were added or deleted
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
CREATE TABLE total (             -- updated by the triggers below
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
CREATE TABLE relisted (          -- entries whose line was added, removed or changed since the index was written
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: an entry that is relisted again gets a new one
    root TEXT NOT NULL,
    topic TEXT NOT NULL,
    key TEXT NOT NULL,
    UNIQUE (root, topic, key) ON CONFLICT REPLACE  -- so insert plainly, never OR IGNORE
) STRICT;
CREATE TABLE written (           -- index files as they were last written: a cache, not a source of truth
    root TEXT NOT NULL,
    rel TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (root, rel)
) STRICT, WITHOUT ROWID;
CREATE TABLE planned (           -- index files that were about to be written when the row was added
    root TEXT NOT NULL,
    rel TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (root, rel, digest)
) STRICT, WITHOUT ROWID;
CREATE VIRTUAL TABLE text USING fts5 (
    name, description, body, context, tokenize = 'porter unicode61'
);
CREATE VIRTUAL TABLE word USING fts5vocab (text, 'row');  -- number of rows that contain a word
