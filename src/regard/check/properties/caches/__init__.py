"""Caches: token by token gives what all tokens at once give."""
