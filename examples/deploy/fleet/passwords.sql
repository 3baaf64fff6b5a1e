-- The image runs this once, after roles.sql. psql reads the secrets itself, so no argument contains them.
\set owner `cat /run/secrets/owner_password`
\set node `cat /run/secrets/node_password`
ALTER ROLE muniment_owner PASSWORD :'owner';
ALTER ROLE muniment_node PASSWORD :'node';
