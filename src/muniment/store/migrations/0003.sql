ALTER TABLE token ADD COLUMN hello BLOB;  -- `names.hello_key` of it; NULL: made before there was one
