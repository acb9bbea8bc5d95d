"""Looking at what a model attends to."""

from regard.lens.maps.head_types import Kinds, kinds_of
from regard.lens.maps.map import AttentionMap, Distance, Sample, Top
from regard.lens.maps.summary import Summary
from regard.lens.recording.recording import Recording
from regard.lens.text.explain import explain
from regard.lens.text.explanation import Comparison, Explanation, Input, Partner, Proof
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
