-- As `store/migrations/0008.sql`. A node of an earlier version writes rows without `body`: they are completed
-- when they are first needed.
ALTER TABLE provenance ADD COLUMN body BIGINT;
CREATE INDEX provenance_by_body ON provenance (home, body);
CREATE TABLE passage (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    digest BIGINT NOT NULL,
    body BIGINT NOT NULL,
    PRIMARY KEY (home, digest, body)
);
CREATE INDEX passage_of_body ON passage (home, body);
ALTER TABLE passage ENABLE ROW LEVEL SECURITY;
ALTER TABLE passage FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON passage USING (home = current_setting('muniment.home', true))
    WITH CHECK (home = current_setting('muniment.home', true));
GRANT SELECT, INSERT, UPDATE, DELETE ON passage TO {role};
