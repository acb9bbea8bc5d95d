"""What stands around an attention: its parameters, its samples, the residual, the patches of a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, of_x, of_x_and_context, split
from property_cases.output_cases import attention
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

PLACES = drawn(4, WIDTH, seed=20)


class Attention(nn.Module):
    """All of its parameters are used."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(4, WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def values(self, x: Tensor) -> Tensor:
        return split(self.v(x))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.placed(x)
        weights = (split(self.q(x)) @ split(self.k(x)).mT / 2).softmax(-1)
        return self.projected(joined(weights @ self.values(x)))

    def placed(self, x: Tensor) -> Tensor:
        return self.positions(torch.arange(x.shape[1]))

    def projected(self, heads: Tensor) -> Tensor:
        return self.out(heads)


class DetachedValues(Attention):
    def values(self, x: Tensor) -> Tensor:
        return split(self.v(x).detach())


class UnusedProjection(Attention):
    def projected(self, heads: Tensor) -> Tensor:
        return heads


class NormedKeys(Attention):
    """Queries and keys are normalized, each by a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.placed(x)
        q, k = self.q_norm(self.q(x)), self.norm_of_keys(self.k(x))
        return self.projected(joined((split(q) @ split(k).mT / 2).softmax(-1) @ self.values(x)))

    def norm_of_keys(self, keys: Tensor) -> Tensor:
        return self.k_norm(keys)


class NormOfQueriesTwice(NormedKeys):
    def norm_of_keys(self, keys: Tensor) -> Tensor:
        return self.q_norm(keys)


class NormsOneOff(NormedKeys):
    """The norm of queries is applied to the keys, and that of keys to the values."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.placed(x)
        q, k, v = self.q(x), self.q_norm(self.k(x)), self.k_norm(joined(self.values(x)))
        weights = (split(q) @ split(k).mT / 2).softmax(-1)  # here
        return self.projected(joined(weights @ split(v)))


class NormOfWhatKeysAreMadeOf(NormedKeys):
    """A sequence is normalized before keys, and values, are made of it."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.placed(x)
        own, other = self.q_norm(x), self.k_norm(x)
        weights = (split(self.q(own)) @ split(self.k(other)).mT / 2).softmax(-1)
        return self.projected(joined(weights @ self.values(other)))


class NormedKeysThrownAway(NormedKeys):
    def norm_of_keys(self, keys: Tensor) -> Tensor:
        self.k_norm(keys)
        return keys


def two_layers(x: Tensor, *, of_keys: bool) -> Tensor:
    """The values of the second layer are its own and what the first one read, or was searched by."""
    first = None
    for layer in range(2):
        q, k, v = (split(x @ drawn(WIDTH, WIDTH, seed=40 + 3 * layer + number)) for number in range(3))
        first = (k if of_keys else v) if first is None else first
        weights = (q @ k.mT / 2).softmax(-1)
        mixed = v if layer == 0 else 0.5 * (v + first)
        x = x + 0.3 * joined(weights @ mixed)  # here
    return x


def keys_of_the_first_layer(x: Tensor) -> Tensor:
    return two_layers(x, of_keys=True)


def values_of_the_first_layer(x: Tensor) -> Tensor:
    return two_layers(x, of_keys=False)


class PositionsTimesZero(Attention):
    def placed(self, x: Tensor) -> Tensor:
        return 0 * super().placed(x)


def places_of_the_batch(x: Tensor) -> Tensor:
    return attention(x + PLACES[: len(x), None])


def places_of_the_tokens(x: Tensor) -> Tensor:
    return attention(x + PLACES)


def rows_by_the_batch(x: Tensor) -> Tensor:
    """The rows of all samples below each other."""
    return places_of_the_batch(x).flatten(0, 1)


def rows_by_the_tokens(x: Tensor) -> Tensor:
    return places_of_the_tokens(x).flatten(0, 1)


def rows_of_tokens_first(x: Tensor) -> Tensor:
    return places_of_the_tokens(x).transpose(0, 1).flatten(0, 1)


def added_twice(x: Tensor) -> Tensor:
    x = x + x  # here
    return x + attention(x)


def added_once(x: Tensor) -> Tensor:
    return x + attention(x)


def added_inside_and_outside(x: Tensor) -> Tensor:
    y = x + attention(x)
    return x + y  # here


def added_once_beside_another(x: Tensor) -> Tensor:
    y = x + attention(x)
    return x @ drawn(WIDTH, WIDTH, seed=3) + y


def causal_after(x: Tensor, norm_axis: int) -> Tensor:
    normed = x * torch.rsqrt((x * x).mean(norm_axis, keepdim=True) + 1e-6)
    q, k, v = (split(normed @ drawn(WIDTH, WIDTH, seed=seed)) for seed in range(3))
    return x + joined(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def causal_after_a_norm_over_tokens(x: Tensor) -> Tensor:
    return causal_after(x, 1)


def causal_after_a_norm(x: Tensor) -> Tensor:
    return causal_after(x, -1)


class ConvolvedKeys(nn.Module):
    """Causal attention, whose keys and values pass a short convolution first."""

    taps, first = 3, 0

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.conv = nn.Conv1d(2 * WIDTH, 2 * WIDTH, self.taps, groups=2 * WIDTH, padding=self.taps - 1)

    def forward(self, x: Tensor, pad: Tensor | None = None) -> Tensor:
        """Pad is true where a token is padding: (batch, tokens)."""
        tokens = x.shape[1]
        kv = self.conv(self.kv(x).mT)[..., self.first : self.first + tokens].mT
        k, v = map(split, kv.chunk(2, -1))
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        seen = seen if pad is None else seen & ~pad[:, None, None]
        return joined(nn.functional.scaled_dot_product_attention(split(self.q(x)), k, v, seen))


class ConvolvedWithLaterKeys(ConvolvedKeys):
    """Causal attention, whose keys and values pass a short convolution first."""

    first = 2


def of_padded_module(kind: Any) -> Invocation:
    call = of_module(kind)
    call.masks = ["pad"]
    return replace(call, arguments={"x": drawn(2, 5, WIDTH, seed=0)})


def attended_twice(x: Tensor) -> Tensor:
    y = attention(x)
    return y + y  # here


class Block(nn.Module):
    """Attention and a feed-forward network, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = x + attention(x)
        return y + self.fed(self.norm(y))

    def fed(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class PreNormBlock(nn.Module):
    """The norm makes vectors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        return x + attention(self.normed(x) * self.gain)

    def normed(self, x: Tensor) -> Tensor:
        return x.mul(torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class PreNormInPlace(PreNormBlock):
    def normed(self, x: Tensor) -> Tensor:
        return x.mul_(torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))  # here


class PreNormBesidePlaces(nn.Module):
    """A pre-norm block: x + attention(norm(x) + places)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.places = nn.LayerNorm(WIDTH), nn.Parameter(drawn(4, WIDTH, seed=9))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return self.stays(x, normed) + attention(normed + self.places)  # here

    def stays(self, x: Tensor, normed: Tensor) -> Tensor:
        return x


class PreNormThatStays(PreNormBesidePlaces):
    """A pre-norm block."""

    def stays(self, x: Tensor, normed: Tensor) -> Tensor:
        return normed


class GeluBlock(Block):
    """Its activation is written by hand."""

    def fed(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return self.down(0.5 * up * (1 + torch.erf(up / 2**0.5)))


class GeluBlockOfItsInput(GeluBlock):
    def forward(self, x: Tensor) -> Tensor:
        y = x + attention(x)
        return x + self.fed(self.norm(y))  # here


class BlockOfItsInput(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = x + attention(x)
        return x + self.fed(self.norm(y))  # here


class BlockOfItsAttention(Block):
    def forward(self, x: Tensor) -> Tensor:
        read = attention(x)
        return read + self.fed(self.norm(x + read))  # here


class Patches(nn.Module):
    """The picture as tokens, one a patch."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 2, 2)

    def forward(self, image: Tensor) -> Tensor:
        return attention(self.patches(image).flatten(2).transpose(1, 2))


class ReshapedPatches(Patches):
    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patches(image).flatten(2).reshape(len(image), -1, WIDTH)
        return attention(tokens + 1)  # here


class ProjectedPatches(Patches):
    """The picture as tokens that a matrix reads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, image: Tensor) -> Tensor:
        q, k, v = self.qkv(self.cut(self.patches(image))).chunk(3, -1)  # here
        return joined((split(q) @ split(k).mT / 2).softmax(-1) @ split(v))

    def cut(self, patches: Tensor) -> Tensor:
        return patches.flatten(2).mT


class ReshapedAndProjectedPatches(ProjectedPatches):
    def cut(self, patches: Tensor) -> Tensor:
        return patches.reshape(len(patches), -1, WIDTH)


class CutPatches(nn.Module):
    """Patches of 2 x 2 places are cut out and projected."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(3 * 2 * 2, WIDTH)

    def forward(self, image: Tensor) -> Tensor:
        return attention(self.project(self.cut(image)))  # here

    def cut(self, image: Tensor) -> Tensor:
        patches = image.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        return patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


class CutAsViewed(CutPatches):
    def cut(self, image: Tensor) -> Tensor:
        return image.reshape(len(image), -1, 3 * 2 * 2)


class CutAcrossPatches(CutPatches):
    """Four places of a row, or of two."""

    def cut(self, image: Tensor) -> Tensor:
        return image.flatten(2).unflatten(2, (-1, 2 * 2)).transpose(1, 2).flatten(2)


def windows_of(x: Tensor) -> Tensor:
    """Attention within windows of 2 x 2, as (batch, rows, columns, 2, 2, width)."""
    batch, height, width, channels = x.shape
    windows = x.view(batch, height // 2, 2, width // 2, 2, channels).transpose(2, 3)
    return attention(windows.reshape(-1, 4, channels)).view(windows.shape)


def windows_left_as_cut(x: Tensor) -> Tensor:
    return windows_of(x).reshape(x.shape)


def windows_put_back(x: Tensor) -> Tensor:
    return windows_of(x).transpose(2, 3).reshape(x.shape)


def added_to_windows_left_as_cut(x: Tensor) -> Tensor:
    """Every place depends on what was there; the first, the middle and the last are right."""
    return x + windows_left_as_cut(x)


def added_to_windows_put_back(x: Tensor) -> Tensor:
    return x + windows_put_back(x)


def moved_on_twice(x: Tensor) -> Tensor:
    return windows_put_back(x.roll((-1, -1), (1, 2))).roll((-1, -1), (1, 2))


def moved_on_and_back(x: Tensor) -> Tensor:
    return windows_put_back(x.roll((-1, -1), (1, 2))).roll((1, 1), (1, 2))


def of_map(function: Any, height: int = 4, width: int = 6) -> Invocation:
    """A call with a map of features."""
    return Invocation(function, {"x": drawn(2, height, width, WIDTH, seed=0)}, ["x"], [Stream("x", "x", 0, (1, 2))])


def of_large_map(function: Any) -> Invocation:
    """A call with a map of 60 places."""
    return of_map(function, 6, 10)


def of_image(kind: type[nn.Module]) -> Invocation:
    """A call with pictures."""
    module = kind()
    prepare(module, 1)
    return Invocation(module, {"image": drawn(2, 3, 4, 6, seed=0)}, ["image"], [Stream("image", "x", 0, (2, 3))])


class PlacesAsViewed(nn.Module):
    """Attention among the places of a map whose channels come first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(3), nn.Linear(3, 9)

    def cut(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, x.shape[1])

    def forward(self, image: Tensor) -> Tensor:
        x = self.norm(self.cut(image))  # here
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / 3**0.5).softmax(-1) @ v


class Places(PlacesAsViewed):
    def cut(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


W_CROSS, W_BETWEEN = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (31, 32))


def reading_itself(x: Tensor, context: Tensor) -> Tensor:
    k, v = split(x @ W_CROSS), split(x + 1)  # here
    return joined((split(x) @ k.mT / 2).softmax(-1) @ v)


def reading_the_context(x: Tensor, context: Tensor) -> Tensor:
    k, v = split(context @ W_CROSS), split(context + 1)
    return joined((split(x) @ k.mT / 2).softmax(-1) @ v)


def seeing(x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
    """Queries of x, keys and values of a memory; `hidden` (queries, keys) is True where nothing is read."""
    scores = split(x @ W_CROSS) @ split(memory @ W_BETWEEN).mT / 2
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return x + joined(weights @ split(memory @ W_CROSS)) @ W_BETWEEN


def translated(x: Tensor, context: Tensor, *, causal_encoder: bool, causal_between: bool) -> Tensor:
    """An encoder of the context, and a causal decoder that reads it."""
    shown = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    later = torch.ones_like(shown).triu(1)
    memory = seeing(context, context, later if causal_encoder else shown)
    return seeing(seeing(x, x, later), memory, later if causal_between else shown)


def mask_of_the_target_for_the_source(x: Tensor, context: Tensor) -> Tensor:
    return translated(x, context, causal_encoder=False, causal_between=True)


def source_seen_as_a_whole(x: Tensor, context: Tensor) -> Tensor:
    return translated(x, context, causal_encoder=False, causal_between=False)


class NormForgotten(Attention):
    """A norm is constructed, asked for, and not called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(WIDTH)
        nn.init.ones_(self.layer_norm.weight)

    def placed(self, x: Tensor) -> Tensor:
        return super().placed(2 * x if self.layer_norm is not None else x)


class NormedByItsBlock(nn.Module):
    """The norm that it forgets would stand behind another one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), NormForgotten()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


class GeneratorForOthers(Attention):
    """It is handed in, and kept for what makes words of the output."""

    def __init__(self, generator: nn.Module | None = None) -> None:
        super().__init__()
        self.generator = generator or nn.Linear(WIDTH, 5)


class NormRead(NormForgotten):
    def placed(self, x: Tensor) -> Tensor:
        return super().placed(x) + self.layer_norm(x)


class FactorForgotten(nn.Module):
    """Called itself, and none of its own numbers is read."""

    def __init__(self) -> None:
        super().__init__()
        self.by_channel = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True)


class FactorRead(FactorForgotten):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.by_channel


class OfAFactor(Attention):
    factor: type[nn.Module] = FactorForgotten

    def __init__(self) -> None:
        super().__init__()
        self.rescaled = self.factor()

    def placed(self, x: Tensor) -> Tensor:
        return super().placed(x) + self.rescaled(x)


class OfAFactorThatIsRead(OfAFactor):
    factor = FactorRead


class TokenForMasks(Attention):
    """Its name says that it is read where something is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(torch.ones(WIDTH))


def input_subtracted(x: Tensor) -> Tensor:
    return attention(x) - x  # here


def attended_subtracted(x: Tensor) -> Tensor:
    return x - attention(x)


def added_scores(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (split(query @ W_BETWEEN)[..., None, :] + split(key @ W_CROSS)[:, :, None]).tanh().sum(-1)
    return joined(scores.softmax(-1) @ split(value))


def queries_not_read(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each key has a score of its own, whatever is asked."""
    return added_scores(key, key, value)


def of_query_key_and_value(function: Any) -> Invocation:
    streams = [Stream(name, name[0], 0, (1,)) for name in ("query", "key", "value")]
    arguments = {each.argument: drawn(2, 3, WIDTH, seed=seed) for seed, each in enumerate(streams)}
    return Invocation(function, arguments, [*arguments], streams)


CASES = [
    Case("parameters-used", NormForgotten, NormedByItsBlock, of_module, has_line=False),
    Case("parameters-used", NormForgotten, NormRead, of_module, has_line=False),
    Case("parameters-used", NormForgotten, GeneratorForOthers, of_module, has_line=False),
    Case("parameters-used", OfAFactor, OfAFactorThatIsRead, of_module, has_line=False),
    Case("parameters-used", NormForgotten, TokenForMasks, of_module, has_line=False),
    Case("residual-added", input_subtracted, attended_subtracted, of_x),
    Case("queries-from-their-input", queries_not_read, added_scores, of_query_key_and_value, has_line=False),
    Case(
        "mask-of-one-sequence",
        mask_of_the_target_for_the_source,
        source_seen_as_a_whole,
        of_x_and_context,
        attentions=3,
        has_line=False,
    ),
    Case("context-read", reading_itself, reading_the_context, of_x_and_context, has_line=False),
    Case("value-residual", keys_of_the_first_layer, values_of_the_first_layer, of_x, attentions=2),
    Case("norm-used", NormOfQueriesTwice, NormedKeys, of_module, has_line=False),
    Case("norm-used", NormedKeysThrownAway, NormedKeys, of_module, has_line=False),
    Case("norm-used", NormsOneOff, NormedKeys, of_module),
    Case("norm-used", NormsOneOff, NormOfWhatKeysAreMadeOf, of_module),
    Case("gradient", DetachedValues, Attention, of_module, has_line=False),
    Case("projection-used", UnusedProjection, Attention, of_module, has_line=False),
    Case("positions-without-effect", PositionsTimesZero, Attention, of_module, has_line=False),
    Case("samples-alike", places_of_the_batch, places_of_the_tokens, of_x, has_line=False),
    Case("samples-alike", rows_by_the_batch, rows_by_the_tokens, of_x, has_line=False),
    Case("samples-alike", rows_by_the_batch, rows_of_tokens_first, of_x, has_line=False),
    Case("residual-once", added_twice, added_once, of_x),
    Case("residual-once", added_inside_and_outside, added_once_beside_another, of_x),
    Case("later-tokens-hidden", causal_after_a_norm_over_tokens, causal_after_a_norm, of_x, has_line=False),
    Case("later-tokens-hidden", ConvolvedWithLaterKeys, ConvolvedKeys, of_padded_module, has_line=False),
    Case("residual-of-the-input", attended_twice, added_once, of_x),
    Case("residual-before-norm", PreNormInPlace, PreNormBlock, of_module),
    Case("residual-before-norm", PreNormThatStays, PreNormBesidePlaces, of_module),
    Case("residual-of-the-sum", BlockOfItsInput, Block, of_module),
    Case("residual-of-the-sum", BlockOfItsAttention, Block, of_module),
    Case("residual-of-the-sum", GeluBlockOfItsInput, GeluBlock, of_module),
    Case("output-at-its-place", windows_left_as_cut, windows_put_back, of_map, has_line=False),
    Case("output-at-its-place", added_to_windows_left_as_cut, added_to_windows_put_back, of_map, has_line=False),
    Case("output-of-the-token", moved_on_twice, moved_on_and_back, of_large_map),
    Case("patches-whole", ReshapedPatches, Patches, of_image),
    Case("patches-whole", CutAsViewed, CutPatches, of_image),
    Case("patches-whole", CutAcrossPatches, CutPatches, of_image),
    Case("patches-whole", PlacesAsViewed, Places, of_image),
    Case("patches-whole", ReshapedAndProjectedPatches, ProjectedPatches, of_image),
]
