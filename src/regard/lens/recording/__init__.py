"""Recordings: the maps of a model by module path, and their files."""
