"""Looking at what a model attends to."""

from regard.lens.explain import explain
from regard.lens.explanation import Comparison, Explanation, Partner, Proof

__all__ = ["Comparison", "Explanation", "Partner", "Proof", "explain"]
