"""Tools for policy reviewers: proofs, differences, findings. No module here runs when memory is used."""
