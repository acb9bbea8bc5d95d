"""Heads and losses as matplotlib figures."""
