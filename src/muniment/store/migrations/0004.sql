-- `from_base64` is a function that `open_ledger` gives to a migration.

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
