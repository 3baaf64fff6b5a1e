-- The roles and the database of a fleet, once, by a superuser: psql -f roles.sql
-- Passwords are set apart, so that none stands in a file of this repository: \password muniment_node

-- Makes the tables and owns them: muniment fleet migrate, muniment fleet home add. No node has its password.
CREATE ROLE muniment_owner LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT 5;

-- Serves. It owns nothing and sees one home at a time; a node refuses to start as a role that may more.
-- The limit: connections of a node's pool and one that listens, for each node, and one node more for upgrades.
CREATE ROLE muniment_node LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT 100;

-- For pg_dump alone: row-level security holds for the owner, too, who therefore cannot dump all homes.
CREATE ROLE muniment_backup LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION BYPASSRLS CONNECTION LIMIT 2;
GRANT pg_read_all_data TO muniment_backup;
ALTER ROLE muniment_backup SET default_transaction_read_only = on;

CREATE DATABASE muniment ENCODING 'UTF8' TEMPLATE template0;
REVOKE ALL ON DATABASE muniment FROM PUBLIC;
GRANT CONNECT, CREATE ON DATABASE muniment TO muniment_owner; -- CREATE: of the schema muniment
GRANT CONNECT ON DATABASE muniment TO muniment_node, muniment_backup;

\connect muniment
REVOKE ALL ON SCHEMA public FROM PUBLIC;
