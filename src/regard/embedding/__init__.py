"""Texts of any number to vectors in a file."""

from regard.embedding.job import Done, Job
from regard.embedding.shard import Shard
from regard.embedding.texts import Texts

__all__ = ["Done", "Job", "Shard", "Texts"]
