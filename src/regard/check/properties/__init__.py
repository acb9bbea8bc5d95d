"""What defines attention, one step a file: each property is held against the table of an attention."""
