"""Looking at what a model attends to."""

from regard.lens.maps.head_types import HeadTypes, detect_heads
from regard.lens.maps.map import AttentionMap, Distance, OutputSample, TopWeights
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.recording import Recording
from regard.lens.text.explain import explain
from regard.lens.text.explanation import Comparison, Explanation, InputVectors, Proof, TopKey
from regard.lens.watch import watch

__all__ = [
    "AttentionMap",
    "AttentionSummary",
    "Comparison",
    "Distance",
    "Explanation",
    "HeadTypes",
    "InputVectors",
    "OutputSample",
    "Proof",
    "Recording",
    "TopKey",
    "TopWeights",
    "detect_heads",
    "explain",
    "watch",
]
