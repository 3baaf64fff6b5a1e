CREATE INDEX provenance_by_digest ON provenance (digest);
