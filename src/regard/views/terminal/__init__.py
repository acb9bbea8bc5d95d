"""Facts as tables, bars and cells in the terminal."""
