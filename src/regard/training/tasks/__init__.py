"""The tasks, by their names on the command line."""

from regard.training.tasks.caption import Caption
from regard.training.tasks.language import Language
from regard.training.tasks.masked import Masked
from regard.training.tasks.task import Batch, Sample, Task
from regard.training.tasks.translate import Translate

__all__ = ["TASKS", "Batch", "Sample", "Task"]

TASKS: dict[str, type[Task]] = {task.name: task for task in (Translate, Language, Masked, Caption)}
