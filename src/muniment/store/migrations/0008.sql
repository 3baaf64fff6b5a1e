-- By which the text of an entry is recognized after it was formatted or edited outside of Muniment: keyed
-- digests, see `store/passages.py`. NULL: not computed yet, at the latest when it is first needed.
ALTER TABLE provenance ADD COLUMN body INTEGER;
CREATE INDEX provenance_by_body ON provenance (body);
CREATE TABLE passage (
    digest INTEGER NOT NULL,     -- of a gram of the text
    body INTEGER NOT NULL,       -- of the text, as in `provenance`
    PRIMARY KEY (digest, body)
) STRICT, WITHOUT ROWID;
CREATE INDEX passage_of_body ON passage (body);
CREATE TRIGGER drop_passages AFTER DELETE ON provenance WHEN OLD.body IS NOT NULL BEGIN
    DELETE FROM passage WHERE body = OLD.body
        AND NOT EXISTS (SELECT 1 FROM provenance WHERE provenance.body = OLD.body);
END;
