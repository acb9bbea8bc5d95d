"""Embedding jobs: a file of any number of texts to a file of vectors.

Files, each standing on those above it:

- `readers`: the texts of a file, one at a time.
- `shard`: the share of the texts that one of several processes embeds.
- `writers`: Parquet, NumPy and safetensors files of vectors.
- `manifest`: what makes a folder of parts regard's own, and one run's at a time.
- `resume`: finished parts in a folder next to the output, so that a stopped job continues.
- `vectors`: the texts of one part to their vectors; it alone imports PyTorch.
- `job`: reads the texts, embeds them part by part, and joins the parts.
"""

from regard.embedding.job import EmbeddingJob, JobResult, embed
from regard.embedding.readers import TextSource
from regard.embedding.shard import Shard

__all__ = ["EmbeddingJob", "JobResult", "Shard", "TextSource", "embed"]
