-- The roles and the database of a fleet. Run once as a superuser: psql -f roles.sql
-- Set passwords separately, so that no file of this repository contains one: \password muniment_node

-- Creates and owns the tables: muniment fleet migrate, muniment fleet home add. Nodes do not have its password.
CREATE ROLE muniment_owner LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT 5;

-- For the nodes. It owns no tables and sees one home at a time; a node does not start with a more powerful role.
-- The limit: for each node its pool and one listening connection, plus one additional node for upgrades.
CREATE ROLE muniment_node LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT 100;

-- Only for pg_dump: row-level security also applies to the owner, who therefore cannot dump all homes.
CREATE ROLE muniment_backup LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION BYPASSRLS CONNECTION LIMIT 2;
GRANT pg_read_all_data TO muniment_backup;
ALTER ROLE muniment_backup SET default_transaction_read_only = on;

CREATE DATABASE muniment ENCODING 'UTF8' TEMPLATE template0;
REVOKE ALL ON DATABASE muniment FROM PUBLIC;
GRANT CONNECT, CREATE ON DATABASE muniment TO muniment_owner; -- CREATE: for the schema muniment
GRANT CONNECT ON DATABASE muniment TO muniment_node, muniment_backup;

\connect muniment
REVOKE ALL ON SCHEMA public FROM PUBLIC;
