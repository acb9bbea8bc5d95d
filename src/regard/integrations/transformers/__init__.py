"""``attn_implementation="regard"`` for the models of Hugging Face transformers.

Importing this module registers regard with transformers, by its ``AttentionInterface`` and ``AttentionMaskInterface``::

    import regard.integrations.transformers
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="regard")

The attention of the model is then `regard.attend`, and its mask a `regard.mask.Mask`: windows, chunks, padding and
packed documents stay what they are, and what they block is not computed. Soft-cap and sinks, which PyTorch's kernel
refuses, are served.

A model has to call the interface of transformers. One that computes its scores itself either ignores the setting, or
gives an error as soon as it uses the mask as a tensor.

Files:

- ``attention``: the attention function
- ``masks``: the mask function
- ``reading``: a mask function of transformers, read as a `regard.mask.Mask`
- ``model_mask``: the mask of one model call, with its sizes

Raises:
    ImportError: transformers is not installed, or has no ``AttentionMaskInterface``.
"""

try:
    from transformers import AttentionInterface, AttentionMaskInterface
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "regard.integrations.transformers registers regard with Hugging Face transformers, which is not installed. "
        "Install it: pip install 'transformers>=5.0'",
        name="transformers",
    ) from error
except ImportError as error:
    raise ImportError(
        "regard.integrations.transformers needs AttentionInterface and AttentionMaskInterface, which this version of "
        f"transformers does not have ({error}). Install a newer one: pip install 'transformers>=5.0'"
    ) from error

from regard.integrations.transformers.attention import attention
from regard.integrations.transformers.masks import attention_mask
from regard.integrations.transformers.model_mask import ModelMask

NAME = "regard"
"""What a model takes as ``attn_implementation``."""

AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, attention_mask)

__all__ = ["NAME", "ModelMask", "attention", "attention_mask"]
