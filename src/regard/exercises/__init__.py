"""Twenty exercises, from one dot product to a decoder with a cache, that answer: which step is wrong, why, and where.

```python
from regard import exercises

path = exercises.write("05")  # 05_projections.py, with the statement, the shapes and a stub
print(exercises.check(path))  # not filled in yet; later right, or the first wrong step with its line
print(exercises.hint("05", 1))
```

- `exercise`, `catalog`, `statements`: what each exercise asks for, in texts; without PyTorch
- `sheet`: the file of an exercise; `writing`: how it is written, and the hints
- `problems`: what each is held against; `checking`: how, in the process of the learner's code
- `checks`, `report`: a file checked, and what is told; `class_table`: a folder of submissions
"""

from regard.exercises.catalog import EXERCISES, find
from regard.exercises.checks import check
from regard.exercises.class_table import ClassTable, SubmissionRow, check_class
from regard.exercises.exercise import Exercise
from regard.exercises.report import ExerciseReport
from regard.exercises.writing import hint, statement, write

__all__ = [
    "EXERCISES",
    "ClassTable",
    "Exercise",
    "ExerciseReport",
    "SubmissionRow",
    "check",
    "check_class",
    "find",
    "hint",
    "statement",
    "write",
]


def __dir__() -> list[str]:
    return sorted(__all__)
