"""What reviewers ask about policies: proofs, differences, findings. Nothing here runs when memory is used."""
