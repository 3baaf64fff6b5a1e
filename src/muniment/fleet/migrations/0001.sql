-- The ledger of `store/migrations`, for all homes in one database. The owner of the schema runs the statements
-- of this file; nodes have another role. {role} is the nodes' role.

CREATE TABLE home (
    home TEXT COLLATE "C" PRIMARY KEY CHECK (home <> ''),
    made TIMESTAMPTZ NOT NULL DEFAULT now(),
    epoch BIGINT NOT NULL DEFAULT 0,     -- epoch of the lease; incremented whenever a node acquires it
    node TEXT,                           -- node that has the lease; NULL: none
    until TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    number BIGINT NOT NULL DEFAULT 0,    -- number of the last commit that is done
    erased BIGINT NOT NULL DEFAULT 0     -- number of erasures
);
CREATE TABLE root (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    id TEXT COLLATE "C" NOT NULL,
    path BYTEA NOT NULL,                 -- path inside the working copy
    PRIMARY KEY (home, id),
    UNIQUE (home, path)
);
CREATE TABLE change_set (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    task TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    at TEXT COLLATE "C" NOT NULL,
    done TEXT COLLATE "C",
    trust TEXT COLLATE "C" NOT NULL,
    decided_by TEXT COLLATE "C" NOT NULL,
    policy TEXT COLLATE "C" NOT NULL,
    fact TEXT COLLATE "C",
    undoes TEXT COLLATE "C",
    token TEXT COLLATE "C" NOT NULL,
    notes TEXT COLLATE "C" NOT NULL DEFAULT '[]',
    review TEXT COLLATE "C",
    number BIGINT,                       -- position among the commits that are done; NULL: not done
    PRIMARY KEY (home, id),
    UNIQUE (home, task),
    UNIQUE (home, number)
);
CREATE INDEX unfinished ON change_set (home, id) WHERE done IS NULL;
CREATE INDEX change_set_of_review ON change_set (home, review) WHERE review IS NOT NULL;
CREATE INDEX change_set_undoing ON change_set (home, id) WHERE undoes IS NOT NULL;
CREATE TABLE blob (                      -- the content of files, stored once for each digest
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    digest TEXT COLLATE "C" NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (home, digest)
);
CREATE TABLE change_kept (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    change_set BIGINT NOT NULL,
    position INTEGER NOT NULL,
    root TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    rel TEXT COLLATE "C" NOT NULL,
    before_blob TEXT COLLATE "C",
    before_digest TEXT COLLATE "C",
    after_blob TEXT COLLATE "C",
    after_digest TEXT COLLATE "C",
    made TEXT COLLATE "C" NOT NULL,
    trust TEXT COLLATE "C",
    PRIMARY KEY (home, change_set, position),
    FOREIGN KEY (home, change_set) REFERENCES change_set (home, id) ON DELETE CASCADE,
    FOREIGN KEY (home, root) REFERENCES root (home, id)
);
CREATE INDEX change_by_path ON change_kept (home, root, rel, change_set);
CREATE INDEX change_by_before ON change_kept (home, before_blob) WHERE before_blob IS NOT NULL;
CREATE INDEX change_by_after ON change_kept (home, after_blob) WHERE after_blob IS NOT NULL;
CREATE TABLE claim (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    change_set BIGINT NOT NULL,
    position INTEGER NOT NULL,
    root TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    rel TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C",
    PRIMARY KEY (home, change_set, position),
    FOREIGN KEY (home, change_set) REFERENCES change_set (home, id) ON DELETE CASCADE,
    FOREIGN KEY (home, root) REFERENCES root (home, id)
);
CREATE TABLE provenance (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    root TEXT COLLATE "C" NOT NULL,
    rel TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    trust TEXT COLLATE "C" NOT NULL,
    task TEXT COLLATE "C" NOT NULL,
    decided_by TEXT COLLATE "C" NOT NULL,
    policy TEXT COLLATE "C" NOT NULL,
    at TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (home, root, rel, digest),
    FOREIGN KEY (home, root) REFERENCES root (home, id)
);
CREATE INDEX provenance_by_digest ON provenance (home, digest);
CREATE TABLE review (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    id TEXT COLLATE "C" NOT NULL,
    task TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    at TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL DEFAULT 'pending',
    reasons TEXT COLLATE "C" NOT NULL,
    policy TEXT COLLATE "C",
    token TEXT COLLATE "C",
    digest TEXT COLLATE "C" NOT NULL,
    outcome TEXT COLLATE "C",
    PRIMARY KEY (home, id)
);
CREATE INDEX review_of_task ON review (home, task);
CREATE INDEX review_pending ON review (home, at) WHERE state = 'pending';
CREATE TABLE forgotten (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    fact TEXT COLLATE "C" NOT NULL,
    at TEXT COLLATE "C" NOT NULL,
    task TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (home, fact)
);
CREATE TABLE record (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    seq BIGINT NOT NULL,
    at TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    task TEXT COLLATE "C",
    body TEXT COLLATE "C",
    body_mac BYTEA NOT NULL,
    mac BYTEA NOT NULL,
    PRIMARY KEY (home, seq)
);
CREATE INDEX record_of_task ON record (home, task) WHERE task IS NOT NULL;
CREATE TABLE head (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    one INTEGER NOT NULL CHECK (one = 1),
    seq BIGINT NOT NULL,
    mac BYTEA NOT NULL,
    PRIMARY KEY (home)
);
CREATE TABLE task (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    id TEXT COLLATE "C" NOT NULL,
    workspace TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    token TEXT COLLATE "C" NOT NULL,
    client TEXT COLLATE "C",
    trust TEXT COLLATE "C" NOT NULL,
    arguments TEXT COLLATE "C",
    shown TEXT COLLATE "C" NOT NULL,
    repeat TEXT COLLATE "C",
    repeated TEXT COLLATE "C",
    attempt INTEGER NOT NULL DEFAULT 0,
    claim INTEGER NOT NULL DEFAULT 0,
    created TEXT COLLATE "C" NOT NULL,
    updated TEXT COLLATE "C" NOT NULL,
    cancelled_by TEXT COLLATE "C",
    result TEXT COLLATE "C",
    error TEXT COLLATE "C",
    PRIMARY KEY (home, id),
    UNIQUE (home, repeat)
);
CREATE INDEX task_pending ON task (home, workspace, seq) WHERE status IN ('queued', 'running');
CREATE INDEX task_of_workspace ON task (home, workspace, seq);
CREATE TABLE event (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    number BIGINT NOT NULL,
    at TEXT COLLATE "C" NOT NULL,
    type TEXT COLLATE "C" NOT NULL,
    task TEXT COLLATE "C" NOT NULL,
    workspace TEXT COLLATE "C",
    roots TEXT COLLATE "C" NOT NULL,
    token TEXT COLLATE "C",
    client TEXT COLLATE "C",
    data TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (home, number)
);
CREATE TABLE series (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    one INTEGER NOT NULL CHECK (one = 1),
    epoch TEXT COLLATE "C" NOT NULL,
    last BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (home)
);
CREATE TABLE token (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    name TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL UNIQUE,
    clients TEXT COLLATE "C" NOT NULL,
    trust TEXT COLLATE "C" NOT NULL,
    at TEXT COLLATE "C" NOT NULL,
    hello BYTEA,
    PRIMARY KEY (home, name)
);
CREATE TABLE session (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    id TEXT COLLATE "C" NOT NULL,
    at TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (home, id)
);
CREATE TABLE told (
    home TEXT COLLATE "C" NOT NULL DEFAULT current_setting('muniment.home')
        REFERENCES home ON DELETE CASCADE,
    number BIGINT GENERATED ALWAYS AS IDENTITY,
    session TEXT COLLATE "C" NOT NULL,
    root TEXT COLLATE "C" NOT NULL,
    rel TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (home, session, root, rel),
    FOREIGN KEY (home, session) REFERENCES session (home, id) ON DELETE CASCADE
);

-- Tables for all homes: the nodes, and the home of each token. Nodes may not read the table `door`.

CREATE TABLE node (
    name TEXT COLLATE "C" PRIMARY KEY,
    version TEXT NOT NULL,
    started TIMESTAMPTZ NOT NULL DEFAULT now(),
    seen TIMESTAMPTZ NOT NULL DEFAULT now(),
    running INTEGER NOT NULL DEFAULT 0,
    slots INTEGER NOT NULL,
    problem TEXT                         -- why the node accepts no work; NULL: it accepts work
);
CREATE TABLE door (
    digest TEXT COLLATE "C" PRIMARY KEY, -- keyed digest of a token
    home TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" UNIQUE,        -- public name of the token, sent by clients
    hello BYTEA                          -- key with which a node proves that it knows the token
);

CREATE FUNCTION home_of(sent TEXT) RETURNS TEXT
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = muniment, pg_temp AS
$$ SELECT home FROM door WHERE digest = sent $$;

CREATE FUNCTION hello_of(asked TEXT) RETURNS BYTEA
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = muniment, pg_temp AS
$$ SELECT hello FROM door WHERE name = asked $$;

CREATE FUNCTION follow_token() RETURNS TRIGGER
LANGUAGE plpgsql SECURITY DEFINER SET search_path = muniment, pg_temp AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        DELETE FROM door WHERE digest = OLD.digest;
        PERFORM pg_notify('muniment_token', OLD.home); -- Disconnects followers with this token.
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO door (digest, home, hello) VALUES (NEW.digest, NEW.home, NEW.hello);
    END IF;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION follow_token() FROM PUBLIC; -- Otherwise a node could use it for its own table.
CREATE TRIGGER follow_token AFTER INSERT OR UPDATE OR DELETE ON token
    FOR EACH ROW EXECUTE FUNCTION follow_token();

-- Functions, views and triggers with the same effect as in the SQLite schema.

CREATE FUNCTION as_bytes(value TEXT) RETURNS BYTEA LANGUAGE sql IMMUTABLE AS
$$ SELECT convert_to(value, 'UTF8') $$;
CREATE FUNCTION as_bytes(value BYTEA) RETURNS BYTEA LANGUAGE sql IMMUTABLE AS $$ SELECT value $$;

CREATE VIEW change WITH (security_invoker = true) AS
    SELECT kept.home, change_set, position, root, scope, rel, was.content AS before, before_digest,
        becomes.content AS after, after_digest, made, trust
    FROM change_kept AS kept
    LEFT JOIN blob AS was ON was.home = kept.home AND was.digest = before_blob
    LEFT JOIN blob AS becomes ON becomes.home = kept.home AND becomes.digest = after_blob;

CREATE FUNCTION kept_blob(bytes BYTEA) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    found TEXT := encode(sha256(bytes), 'hex');
BEGIN
    IF found IS NOT NULL THEN
        INSERT INTO blob (digest, content) VALUES (found, bytes) ON CONFLICT DO NOTHING;
    END IF;
    RETURN found;
END $$;

CREATE FUNCTION write_change() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO change_kept (change_set, position, root, scope, rel, before_blob, before_digest,
            after_blob, after_digest, made, trust)
        VALUES (NEW.change_set, NEW.position, NEW.root, NEW.scope, NEW.rel, kept_blob(NEW.before),
            NEW.before_digest, kept_blob(NEW.after), NEW.after_digest, NEW.made, NEW.trust);
    ELSIF TG_OP = 'UPDATE' THEN
        UPDATE change_kept SET rel = NEW.rel, made = NEW.made, before_digest = NEW.before_digest,
            after_digest = NEW.after_digest,
            before_blob = CASE WHEN NEW.before IS NOT NULL THEN before_blob END,
            after_blob = CASE WHEN NEW.after IS NOT NULL THEN after_blob END
        WHERE home = OLD.home AND change_set = OLD.change_set AND position = OLD.position;
    ELSE
        DELETE FROM change_kept
        WHERE home = OLD.home AND change_set = OLD.change_set AND position = OLD.position;
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER write_change INSTEAD OF INSERT OR UPDATE OR DELETE ON change
    FOR EACH ROW EXECUTE FUNCTION write_change();

CREATE FUNCTION drop_blobs() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM blob WHERE blob.home = OLD.home AND digest IN (OLD.before_blob, OLD.after_blob)
        AND NOT EXISTS (SELECT 1 FROM change_kept AS one
            WHERE one.home = blob.home AND one.before_blob = blob.digest)
        AND NOT EXISTS (SELECT 1 FROM change_kept AS one
            WHERE one.home = blob.home AND one.after_blob = blob.digest);
    RETURN NULL;
END $$;
CREATE TRIGGER drop_blobs AFTER UPDATE OR DELETE ON change_kept
    FOR EACH ROW EXECUTE FUNCTION drop_blobs();

CREATE VIEW step WITH (security_invoker = true) AS
    SELECT change.*, task, kind, at, done, change_set.trust AS asked, decided_by, policy, fact, undoes
    FROM change JOIN change_set ON change_set.home = change.home AND change_set.id = change_set
    WHERE review IS NULL;
CREATE VIEW source WITH (security_invoker = true) AS
    SELECT root, rel, digest, known.trust, known.task, known.decided_by, known.policy, known.at, kind, fact
    FROM provenance AS known
    LEFT JOIN change_set ON change_set.home = known.home AND change_set.task = known.task
    UNION ALL
    SELECT root, rel, after_digest, trust, task, decided_by, policy, at, kind, fact
    FROM step WHERE done IS NULL AND undoes IS NULL;

-- Notify the nodes when a change of a home is committed, so that its followers receive the event.

CREATE FUNCTION tell_node() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('muniment_home', NEW.home);
    RETURN NULL;
END $$;
CREATE TRIGGER tell_node AFTER UPDATE OF last ON series FOR EACH ROW EXECUTE FUNCTION tell_node();
CREATE FUNCTION tell_cancelled() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('muniment_cancelled', NEW.home || ' ' || NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER tell_cancelled AFTER UPDATE OF cancelled_by ON task
    FOR EACH ROW WHEN (NEW.cancelled_by IS NOT NULL AND NEW.status = 'running')
    EXECUTE FUNCTION tell_cancelled();

-- Number each commit that is done, so that a node can detect an outdated working copy.

CREATE FUNCTION number_commit() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    UPDATE home SET number = home.number + 1 WHERE home.home = NEW.home RETURNING home.number INTO NEW.number;
    RETURN NEW;
END $$;
CREATE TRIGGER number_commit BEFORE UPDATE OF done ON change_set
    FOR EACH ROW WHEN (OLD.done IS NULL AND NEW.done IS NOT NULL) EXECUTE FUNCTION number_commit();
CREATE FUNCTION count_erasure() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    UPDATE home SET erased = home.erased + 1 WHERE home.home = NEW.home;
    PERFORM pg_notify('muniment_stale', NEW.home);
    RETURN NULL;
END $$;
CREATE TRIGGER count_erasure AFTER INSERT ON record
    FOR EACH ROW WHEN (NEW.kind = 'erase') EXECUTE FUNCTION count_erasure();

CREATE FUNCTION tell_removed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('muniment_stale', OLD.home);
    RETURN NULL;
END $$;
CREATE TRIGGER tell_removed AFTER DELETE ON home FOR EACH ROW EXECUTE FUNCTION tell_removed();

-- Separate the homes: each row belongs to one home, and a transaction sees only the rows of the home that it
-- names. If the owner names no home, it sees all homes and tasks; the functions below need this.

DO $$
DECLARE
    each TEXT;
BEGIN
    FOREACH each IN ARRAY ARRAY['home', 'root', 'change_set', 'blob', 'change_kept', 'claim', 'provenance',
        'review', 'forgotten', 'record', 'head', 'task', 'event', 'series', 'token', 'session', 'told']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', each);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', each);
        EXECUTE format('CREATE POLICY own ON %I USING (home = current_setting(''muniment.home'', true)) '
            'WITH CHECK (home = current_setting(''muniment.home'', true))', each);
        IF each <> 'home' THEN
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO {role}', each);
        END IF;
    END LOOP;
END $$;
CREATE POLICY all_of_them ON home TO CURRENT_USER USING (coalesce(current_setting('muniment.home', true), '') = '');
CREATE POLICY all_of_them ON task FOR SELECT TO CURRENT_USER
    USING (coalesce(current_setting('muniment.home', true), '') = '');
GRANT SELECT ON home TO {role};
GRANT UPDATE (epoch, node, until, number, erased) ON home TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON change TO {role};
GRANT SELECT ON step, source TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON node TO {role};
GRANT SELECT ON migration TO {role};
GRANT USAGE ON SCHEMA muniment TO {role};

-- Functions over all homes. They return only ids and counts, no texts of a memory.

CREATE FUNCTION waiting_homes(at_most INTEGER, queues TEXT[]) RETURNS SETOF TEXT
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = muniment, pg_temp AS $$
    SELECT DISTINCT task.home FROM task
    WHERE status IN ('queued', 'running') AND (NOT EXISTS (
        SELECT 1 FROM procrastinate_jobs AS job
        WHERE job.lock = task.home AND job.status IN ('doing', 'todo')
    ) OR EXISTS ( -- A job that waits for an ended node blocks the later ones.
        SELECT 1 FROM procrastinate_jobs AS job
        WHERE job.lock = task.home AND job.status = 'todo' AND NOT job.queue_name = ANY (queues)))
    LIMIT at_most
$$;
CREATE FUNCTION stale_copies(homes TEXT[], seen BIGINT[]) RETURNS SETOF TEXT
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = muniment, pg_temp AS $$
    SELECT copy.name FROM unnest(homes, seen) AS copy (name, erased)
    LEFT JOIN home ON home.home = copy.name WHERE home.erased IS DISTINCT FROM copy.erased
$$;
CREATE FUNCTION count_tasks() RETURNS TABLE (status TEXT, tasks BIGINT, oldest TEXT)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = muniment, pg_temp AS $$
    SELECT status, count(*), min(created) FROM task WHERE status IN ('queued', 'running') GROUP BY status
$$;
CREATE FUNCTION count_homes() RETURNS TABLE (homes BIGINT, leases BIGINT)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = muniment, pg_temp AS $$
    SELECT count(*), count(*) FILTER (WHERE until > now()) FROM home
$$;
CREATE INDEX job_of_home ON procrastinate_jobs (lock) WHERE status IN ('todo', 'doing');
CREATE INDEX task_waiting ON task (home) WHERE status IN ('queued', 'running');

-- Without this notice, a task that is accepted while the previous one ends would wait for the next poll.

CREATE FUNCTION tell_free_lock() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('procrastinate_queue_v1#' || job.queue_name,
        json_build_object('type', 'job_inserted', 'job_id', job.id)::text)
    FROM procrastinate_jobs AS job WHERE job.lock = OLD.lock AND job.status = 'todo' LIMIT 1;
    RETURN NULL;
END $$;
CREATE TRIGGER tell_free_lock_ended AFTER UPDATE OF status ON procrastinate_jobs
    FOR EACH ROW WHEN (OLD.status = 'doing' AND NEW.status <> 'doing') EXECUTE FUNCTION tell_free_lock();
CREATE TRIGGER tell_free_lock_gone AFTER DELETE ON procrastinate_jobs
    FOR EACH ROW WHEN (OLD.status = 'doing') EXECUTE FUNCTION tell_free_lock();

-- Only nodes may call the functions that run as the owner. The grants also cover functions that run as their
-- caller, in case the defaults of the database do not allow nodes to call them.

REVOKE EXECUTE ON FUNCTION home_of(TEXT), hello_of(TEXT), waiting_homes(INTEGER, TEXT[]),
    stale_copies(TEXT[], BIGINT[]), count_tasks(), count_homes() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION home_of(TEXT), hello_of(TEXT), waiting_homes(INTEGER, TEXT[]),
    stale_copies(TEXT[], BIGINT[]), count_tasks(), count_homes(), as_bytes(TEXT), as_bytes(BYTEA),
    kept_blob(BYTEA) TO {role};
