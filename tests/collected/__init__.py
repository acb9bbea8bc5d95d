"""How often `regard check` is right on code that it was not made for: see `__main__`."""
