"""Texts of any number to vectors in a file."""

from regard.embedding.job import Done, Job
from regard.embedding.readers import Texts
from regard.embedding.shard import Shard

__all__ = ["Done", "Job", "Shard", "Texts"]
