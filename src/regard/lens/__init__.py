"""Looking at what a model attends to."""

from regard.lens.explain import explain
from regard.lens.explanation import Comparison, Explanation, Input, Partner, Proof
from regard.lens.kinds import Kinds, kinds_of
from regard.lens.map import AttentionMap, Distance, Sample, Top
from regard.lens.recording import Recording
from regard.lens.summary import Summary
from regard.lens.watch import watch

__all__ = [
    "AttentionMap",
    "Comparison",
    "Distance",
    "Explanation",
    "Input",
    "Kinds",
    "Partner",
    "Proof",
    "Recording",
    "Sample",
    "Summary",
    "Top",
    "explain",
    "kinds_of",
    "watch",
]
