"""Small random models that read images, of transformers' architectures, and a block of a UNet."""

from functools import cache

import torch
import transformers
from torch import nn
from torch.nn import functional as F

import regard

IMAGE = 63
"""The id of the image token."""
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 16, "patch_size": 4}
TEXT = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT |= {"num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128}
TOKEN = {"image_token_id": IMAGE, "image_token_index": IMAGE}


def pixels(count=1, height=16, width=16):
    return torch.randn(count, 3, height, width)


def prompt(*parts):
    """Ids in which a number stands for so many image tokens, and a word's letters for words."""
    return [token for part in parts for token in ([IMAGE] * part if isinstance(part, int) else map(ord, part))]


def words(text):
    return "".join(chr(5 + i) for i in range(len(text)))


A, B = words("x"), words("xy")


def run(model, **inputs):
    with torch.no_grad(), regard.watch(model.eval()) as seen:
        model(**{name: torch.tensor(value) if isinstance(value, list) else value for name, value in inputs.items()})
    return seen


def llava(vision=None, **config):
    vision = vision or transformers.CLIPVisionConfig(**VISION)
    text = transformers.LlamaConfig(**TEXT)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, **TOKEN, **config)
    return transformers.LlavaForConditionalGeneration(config)


@cache
def plain_llava():
    return llava()


def clip(tokens):
    config = transformers.CLIPConfig(text_config={**TEXT, "bos_token_id": 1, "eos_token_id": 2}, vision_config=VISION)
    ids = torch.full((1, tokens), 7)
    return run(transformers.CLIPModel(config), input_ids=ids, pixel_values=pixels())


def tower(name, **config):
    config = getattr(transformers, f"{name}Config")(**VISION, **config)
    return run(getattr(transformers, f"{name}Model")(config), pixel_values=pixels())


def gemma3():
    """Its projector averages squares of patches."""
    text = transformers.Gemma3TextConfig(**TEXT, head_dim=16)
    vision = transformers.SiglipVisionConfig(**VISION)
    config = transformers.Gemma3Config(vision_config=vision, text_config=text, mm_tokens_per_image=4, **TOKEN)
    ids = prompt(B, 4, A)
    types = [[int(token == IMAGE) for token in ids]]
    model = transformers.Gemma3ForConditionalGeneration(config)
    return run(model, input_ids=[ids], pixel_values=pixels(), token_type_ids=types)


def mistral3():
    """A token of its own ends each row of patches."""
    vision, text = transformers.PixtralVisionConfig(**VISION), transformers.MistralConfig(**TEXT)
    config = transformers.Mistral3Config(vision_config=vision, text_config=text, spatial_merge_size=1, **TOKEN)
    model = transformers.Mistral3ForConditionalGeneration(config)
    ids = prompt(A, 4, A, 4, A, 4, A)
    return run(model, input_ids=[ids], pixel_values=pixels(1, 12, 16), image_sizes=[[12, 16]])


def qwen2_vl():
    """Its tower takes no image, but patches in an order of its own; the second image has as many as the text."""
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}
    special = {"image_token_id": IMAGE, "video_token_id": 62, "vision_start_token_id": 60, "vision_end_token_id": 61}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **special)
    ids = prompt("\1<", 6, "=<", 4, "=\7")
    more = {"image_grid_thw": [[1, 4, 6], [1, 4, 4]], "mm_token_type_ids": [[int(token == IMAGE) for token in ids]]}
    model = transformers.Qwen2VLForConditionalGeneration(config)
    return run(model, input_ids=[ids], pixel_values=torch.randn(24 + 16, 3 * 2 * 4 * 4), **more)


def blip2():
    """Its image tokens are learned queries, here as many as there are patches."""
    text = transformers.OPTConfig(
        hidden_size=32, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64, word_embed_proj_dim=32
    )
    config = transformers.Blip2Config(
        vision_config=VISION,
        qformer_config={**TEXT, "encoder_hidden_size": 32},
        text_config=text,
        num_query_tokens=16,
        image_token_index=IMAGE,
    )
    model = transformers.Blip2ForConditionalGeneration(config)
    return run(model, input_ids=[prompt(B, 16, A)], pixel_values=pixels())


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, hidden_states, encoder_hidden_states=None):
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        return F.scaled_dot_product_attention(self.q(hidden_states), self.k(source), self.v(source))


class UNetBlock(nn.Module):
    """Latent positions attend to each other, then to words."""

    def __init__(self):
        super().__init__()
        self.own, self.cross = CrossAttention(), CrossAttention()

    def forward(self, hidden_states, encoder_hidden_states):
        x = hidden_states.flatten(2).transpose(1, 2)
        x = self.own(x) + self.cross(x, encoder_hidden_states)
        return x.transpose(1, 2).view_as(hidden_states)


def unet(tokens):
    latents, text = torch.randn(1, 8, 6, 4), torch.randn(1, tokens, 8)
    return run(UNetBlock(), hidden_states=latents, encoder_hidden_states=text)
