"""What a model attends to: exact attention maps of any PyTorch model, and the attention of a text.

- `maps`: exact attention maps and their statistics.
- `capture`: how the attention calls of a running model are captured.
- `recording`: the maps of a model by module path, and their files.
- `watch`: capture a model while it runs, without changing it.
- `intervene`: edit a model's attention while it runs; `interventions`: the kinds of edit.
- `effects`: what each head, layer, token or edge matters for a metric.
- `text`: a text through a model of regard; with `effects` the only part that knows models of regard.
- `display`: drawing by `regard.views`; the only file that uses it.
"""

from regard.lens.intervene import intervene
from regard.lens.interventions.report import EditReport, InterventionReport
from regard.lens.maps.attribution import Attribution
from regard.lens.maps.groups import GroupOutputs
from regard.lens.maps.head_types import HeadTypes, detect_heads
from regard.lens.maps.inputs import OutputSample
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.moments import Distance
from regard.lens.maps.streaming import TopWeights
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.recording import Recording
from regard.lens.text.explain import explain
from regard.lens.text.explanation import Comparison, Explanation, InputVectors, NextToken, Proof, TopKey
from regard.lens.watch import watch

__all__ = [
    "AttentionMap",
    "AttentionSummary",
    "Attribution",
    "Comparison",
    "Distance",
    "EditReport",
    "Explanation",
    "GroupOutputs",
    "HeadTypes",
    "InputVectors",
    "InterventionReport",
    "NextToken",
    "OutputSample",
    "Proof",
    "Recording",
    "TopKey",
    "TopWeights",
    "detect_heads",
    "explain",
    "intervene",
    "watch",
]
