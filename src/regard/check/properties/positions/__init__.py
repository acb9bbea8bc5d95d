"""Positions: what they do to tokens that are alike, and the tables that they are read from."""
