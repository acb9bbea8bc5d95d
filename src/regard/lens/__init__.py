"""Looking at what a model attends to."""

from regard.lens.explain import explain
from regard.lens.explanation import Comparison, Explanation, Input, Partner, Proof

__all__ = ["Comparison", "Explanation", "Input", "Partner", "Proof", "explain"]
