"""What a check says: the report and its parts.

`report` is the whole, of the parts in `records`; `lines` writes it for people to read, `annotations` for GitHub.
`findings` is what one process found out and the other judges; `steps` says what is known of each step of the
definition. These two are not imported here: a report is read without PyTorch.
"""

from regard.check.location import CodeLocation
from regard.check.report.records import AttentionResult, Example, FoundMistake, StepResult, StepStatus, Verdict
from regard.check.report.report import Report

__all__ = [
    "AttentionResult",
    "CodeLocation",
    "Example",
    "FoundMistake",
    "Report",
    "StepResult",
    "StepStatus",
    "Verdict",
]
