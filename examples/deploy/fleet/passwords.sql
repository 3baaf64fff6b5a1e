-- Run by the image once, after roles.sql: psql reads the secrets itself, and no argument holds them.
\set owner `cat /run/secrets/owner_password`
\set node `cat /run/secrets/node_password`
ALTER ROLE muniment_owner PASSWORD :'owner';
ALTER ROLE muniment_node PASSWORD :'node';
