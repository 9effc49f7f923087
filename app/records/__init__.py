"""Records by id and by criteria."""
