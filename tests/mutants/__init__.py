"""Mutation testing of regard: see `__main__`."""
