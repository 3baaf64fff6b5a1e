ALTER TABLE series ADD COLUMN last INTEGER NOT NULL DEFAULT 0;  -- the number of the last event
UPDATE series SET last = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0);
