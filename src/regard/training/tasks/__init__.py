"""The tasks, by their names on the command line."""

from regard.training.tasks.captioning import Caption
from regard.training.tasks.causal_lm import Language
from regard.training.tasks.masked_lm import Masked
from regard.training.tasks.seq2seq import Translate
from regard.training.tasks.task import Batch, Sample, Task

__all__ = ["TASKS", "Batch", "Sample", "Task"]

TASKS: dict[str, type[Task]] = {task.name: task for task in (Translate, Language, Masked, Caption)}
