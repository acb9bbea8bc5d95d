"""regard: attention for transformers that you can run, see and check.

The public names are listed in ``__all__``. Each is imported when it is first used, so that
``import regard`` and ``regard --help`` do not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    # With "as" they can be reached through regard, for mypy as well.
    from regard import attention as attention
    from regard import embedding as embedding
    from regard import errors as errors
    from regard import exercises as exercises
    from regard import generation as generation
    from regard import lens as lens
    from regard import pretrained as pretrained
    from regard import training as training
    from regard import transformer as transformer
    from regard import views as views
    from regard.attention import MultiHeadAttention, Plan, Steps, attend, cache, course, mask, plan, positions, steps
    from regard.check import check  # the function; at run time it is the package, which can be called
    from regard.decoding import Beam, Greedy, Sample
    from regard.embedding import embed
    from regard.errors import InputError
    from regard.generation import generate, stream, translate
    from regard.integrations.pytorch.replace import replace
    from regard.lens import AttentionMap, Explanation, Recording
    from regard.lens.effects import Effects, metrics
    from regard.lens.effects.effect import effect
    from regard.lens.effects.faithfulness import faithfulness
    from regard.lens.intervene import intervene
    from regard.lens.text.explain import explain  # mypy takes them for the modules if they come from regard.lens
    from regard.lens.watch import watch
    from regard.pretrained import Pretrained, load
    from regard.server.live import live
    from regard.training.train import train
    from regard.views.see import see

__all__ = [
    "AttentionMap",
    "Beam",
    "Effects",
    "Explanation",
    "Greedy",
    "InputError",
    "MultiHeadAttention",
    "Plan",
    "Pretrained",
    "Recording",
    "Sample",
    "Steps",
    "attend",
    "cache",
    "check",
    "course",
    "effect",
    "embed",
    "explain",
    "faithfulness",
    "generate",
    "intervene",
    "live",
    "load",
    "mask",
    "metrics",
    "plan",
    "positions",
    "replace",
    "see",
    "steps",
    "stream",
    "train",
    "translate",
    "watch",
]

_ROOMS = {
    "AttentionMap": "regard.lens",
    "Beam": "regard.decoding",
    "Effects": "regard.lens.effects",
    "Explanation": "regard.lens",
    "Greedy": "regard.decoding",
    "InputError": "regard.errors",
    "MultiHeadAttention": "regard.attention",
    "Plan": "regard.attention",
    "Pretrained": "regard.pretrained",
    "Recording": "regard.lens",
    "Sample": "regard.decoding",
    "Steps": "regard.attention",
    "attend": "regard.attention",
    "cache": "regard.attention",
    "check": "regard.check",
    "course": "regard.attention",
    "effect": "regard.lens.effects.effect",
    "embed": "regard.embedding",
    "explain": "regard.lens",
    "faithfulness": "regard.lens.effects.faithfulness",
    "generate": "regard.generation",
    "intervene": "regard.lens",
    "live": "regard.server.live",
    "load": "regard.pretrained",
    "mask": "regard.attention",
    "metrics": "regard.lens.effects",
    "plan": "regard.attention",
    "positions": "regard.attention",
    "replace": "regard.integrations.pytorch.replace",
    "see": "regard.views.see",
    "steps": "regard.attention",
    "stream": "regard.generation",
    "train": "regard.training.train",
    "translate": "regard.generation",
    "watch": "regard.lens",
}


_PACKAGES = (
    "attention",
    "embedding",
    "errors",
    "exercises",
    "generation",
    "lens",
    "pretrained",
    "training",
    "transformer",
    "views",
)
"""What else can be reached after ``import regard``, such as ``regard.transformer.Encoder``."""


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return import_module(f"regard.{name}")
        if name not in _ROOMS:
            raise AttributeError(
                f"module 'regard' has no attribute {name!r}; it has {', '.join(__all__)}, and the packages "
                f"{', '.join(_PACKAGES)}"
            )
        # The room named check is called as a function is.
        value = import_module("regard.check") if name == "check" else getattr(import_module(_ROOMS[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted([*__all__, *_PACKAGES, "__version__"])
