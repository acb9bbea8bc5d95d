"""The attention of models while they run, and what it says.

- `capture`: records the attention calls of any PyTorch model
- `maps`: exact statistics of one attention, without a queries x keys matrix
- `recording`: the maps of a model by module path, and their file
- `watch`: `regard.watch`, which fills a recording
- `text`: a text in one of regard's models: `regard.explain`, the overview of all heads, words in context
"""

from regard.lens.maps.head_types import HeadTypes, detect_heads
from regard.lens.maps.inputs import OutputSample
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.moments import Distance
from regard.lens.maps.streaming import TopWeights
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
