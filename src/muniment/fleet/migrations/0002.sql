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
CREATE FUNCTION drop_passages() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM passage WHERE passage.home = OLD.home AND passage.body = OLD.body AND NOT EXISTS (
        SELECT 1 FROM provenance WHERE provenance.home = OLD.home AND provenance.body = OLD.body);
    RETURN NULL;
END $$;
CREATE TRIGGER drop_passages AFTER DELETE ON provenance
    FOR EACH ROW WHEN (OLD.body IS NOT NULL) EXECUTE FUNCTION drop_passages();
