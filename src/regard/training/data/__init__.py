"""Training data: rows of files, or built-in data.

- `datasets`: pairs, texts and images, of files or built in
- `data_files`: which files a user names
- `readers`: rows of TSV, JSONL, Parquet and text files
- `image_folder`: rows of a folder of images and a CSV
- `builtin`: Python's documentation and scikit-learn's digits
- `dates`: dates in twelve languages
- `split`: the eval rows, and the rows that are trained on
"""

from regard.training.data.datasets import images, pairs, texts
from regard.training.data.split import MAX_EVAL_ROWS, TrainingData

__all__ = ["MAX_EVAL_ROWS", "TrainingData", "images", "pairs", "texts"]
