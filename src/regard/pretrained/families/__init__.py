"""The families of checkpoints that regard reads, one file each, with only what differs between them."""

from regard.pretrained.families.bart import BART
from regard.pretrained.families.bert import BERT
from regard.pretrained.families.gemma2 import GEMMA2
from regard.pretrained.families.gpt2 import GPT2
from regard.pretrained.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from regard.pretrained.families.marian import MARIAN
from regard.pretrained.families.roberta import ROBERTA
from regard.pretrained.families.t5 import T5
from regard.pretrained.families.vision_encoder_decoder import VISION

__all__ = ["FAMILIES"]

FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma2": GEMMA2,
    "marian": MARIAN,
    "bart": BART,
    "t5": T5,
    "vision-encoder-decoder": VISION,
}
"""By config.json's ``model_type``."""
