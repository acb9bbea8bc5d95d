"""Which tokens of an attention are patches of an image, by the arguments of the calls around it.

Three things tell: a vision tower or a block of a UNet is called with an image or a feature map of as many patches; a
language model is called with ids that hold as many of its own image tokens as its tower made patches; and the keys of a
cross-attention come from a tower that ran before. Sizes that only happen to fit tell nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from regard.lens.capture.call import CapturedCall
from regard.lens.capture.kind import KEY_SOURCES, QUERY_SOURCES, enclosing_calls
from regard.lens.maps.patches import NO_PATCHES, AttentionPatches, ImagePatches

MAX_EXTRA_TOKENS = 8
"""The most class and register tokens before the patches of a tower."""

IMAGE_TOKEN_NAMES = "image_token_id", "image_token_index"
"""What configs call the id of the tokens that stand for patches."""

NO_SEQUENCE = re.compile(r"mask|bias|pos|type|label|seg|grid|size|shape|len", re.IGNORECASE)
"""Arguments that are neither a text nor an image."""

LATENTS = re.compile(r"qformer|perceiver|resampler|latent|num_query_tokens", re.IGNORECASE)
"""Settings of models whose image tokens are learned queries, which have no place in the image."""

Arguments = Mapping[str, Any]


class PatchFinder:
    """Finds the patches of the attentions of one model, in the order in which they run."""

    def __init__(self) -> None:
        self._sources: dict[int, dict[str, tuple[int, tuple[ImagePatches, ...]]]] = {}
        """For each number of tokens, the stacks of self-attention that had it last: their batch size and patches."""
        self._tower: tuple[ImagePatches, ...] = ()
        """Those of the vision tower that ran last."""

    def find(
        self, stack: str, kind: str, module: nn.Module, call: CapturedCall, frame: FrameType | None
    ) -> AttentionPatches:
        """The patches of an attention.

        Args:
            stack: the stack of layers that it belongs to.
            kind: "self" or "cross".
            module: the module that computes it.
            call: its call.
            frame: the frame of the code that computed it.
        """
        found = NO_PATCHES
        if call.shape[2] > 1:  # one query is a step of a generation
            found = self._by_arguments(kind, module, call, frame)
            if kind == "self":
                self._sources.setdefault(call.shape[3], {})[stack] = call.shape[0], found.keys
        if kind == "cross" and not found.keys:
            found = AttentionPatches(found.queries, self._of_source(stack, call))
        return found

    def _of_source(self, stack: str, call: CapturedCall) -> tuple[ImagePatches, ...]:
        """The patches among the keys of a cross-attention: those of the one other stack with so many tokens."""
        sources = {source for name, source in self._sources.get(call.shape[3], {}).items() if name != stack}
        batch_size, patches = sources.pop() if len(sources) == 1 else (1, ())
        beams, rest = divmod(call.shape[0], batch_size)
        return () if rest else _of_beams(patches, beams)

    def _by_arguments(
        self, kind: str, module: nn.Module, call: CapturedCall, frame: FrameType | None
    ) -> AttentionPatches:
        found, is_text, has_embeddings = NO_PATCHES, False, False
        for caller, arguments in enclosing_calls(frame, module):
            if any(isinstance(t, Tensor) and t.ndim == 5 and t.shape[1] > 1 for t in arguments.values()):
                return NO_PATCHES  # the crops of an image or the frames of a film
            if found != NO_PATCHES:
                continue
            embeddings = arguments.get("inputs_embeds")
            has_embeddings = has_embeddings or (
                isinstance(embeddings, Tensor) and tuple(embeddings.shape[:2]) == (call.shape[0], call.shape[2])
            )
            if _has_text(arguments):
                is_text = True
                # A tower may have as many tokens as its language model, which alone is given embeddings.
                if kind == "self" and has_embeddings and (images := self._image_tokens(caller, arguments, call)):
                    found = AttentionPatches(images, images)
            elif not is_text:
                found = _of_feature_map(kind, caller, arguments, call)
                if kind == "self" and found != NO_PATCHES:
                    self._tower = found.keys
        return found

    def _image_tokens(self, caller: nn.Module, arguments: Arguments, call: CapturedCall) -> tuple[ImagePatches, ...]:
        """The patches by the image tokens among a model's ids."""
        config, ids = getattr(caller, "config", None), arguments.get("input_ids")
        number = next((n for name in IMAGE_TOKEN_NAMES if type(n := getattr(config, name, None)) is int), None)
        batch, _, queries, keys = call.shape
        if (
            number is None
            or not isinstance(ids, Tensor)
            or not (tuple(ids.shape) == (batch, queries) and queries == keys)
        ):
            return ()
        if LATENTS.search(" ".join(getattr(config, "__dict__", ()))):
            return ()
        is_image = (ids == number).cpu()
        for beams in (count for count in range(1, batch + 1) if batch % count == 0):
            prompts = is_image[::beams]
            if torch.equal(prompts.repeat_interleave(beams, 0), is_image):
                places = prompts.nonzero().tolist()
                for grids in self._token_grids(config, arguments):
                    if images := _laid_out(places, grids):
                        return _of_beams(images, beams)
        return ()

    def _token_grids(self, config: Any, arguments: Arguments) -> Iterator[list[tuple[int, int, int]]]:
        """What the image tokens may be: for each image (tokens before its patches, rows, columns)."""
        sizes = arguments.get("image_grid_thw")
        if isinstance(sizes, Tensor):
            merged = getattr(getattr(config, "vision_config", None), "spatial_merge_size", 1)
            yield [(0, height // merged, width // merged) for _, height, width in sizes.tolist()]
            return
        has_extra = getattr(config, "vision_feature_select_strategy", "") == "full"
        for side in range(1, 1 + min((min(each.rows, each.columns) for each in self._tower), default=0)):
            # A projector may join squares of patches.
            if all(each.rows % side == each.columns % side == 0 for each in self._tower):
                yield [(has_extra * each.first, each.rows // side, each.columns // side) for each in self._tower]


def _laid_out(places: Sequence[Sequence[int]], grids: Sequence[tuple[int, int, int]]) -> tuple[ImagePatches, ...]:
    """The patches of each image where the image tokens are theirs; () where they are others.

    Args:
        places: (batch row, token) of each image token.
        grids: of each image, as of `_token_grids`.
    """
    if not places or sum(extra + rows * columns for extra, rows, columns in grids) != len(places):
        return ()
    found, start = [], 0
    for image, (extra, rows, columns) in enumerate(grids):
        own = places[start + extra : start + extra + rows * columns]
        start += extra + rows * columns
        row, first = own[0]
        # A token may end each row of patches.
        stride = own[columns][1] - first if rows > 1 else columns
        if own != [[row, first + i * stride + j] for i in range(rows) for j in range(columns)]:
            return ()
        found.append(ImagePatches(row, image, first, rows, columns, stride))
    return tuple(found)


def _of_beams(patches: Sequence[ImagePatches], beams: int) -> tuple[ImagePatches, ...]:
    """The patches where each batch row is repeated; the beams of a row are adjacent."""
    return tuple(replace(each, batch=each.batch * beams + beam) for each in patches for beam in range(beams))


def _has_text(arguments: Arguments) -> bool:
    return any(
        isinstance(t, Tensor) and t.ndim == 2 and t.dtype in (torch.int64, torch.int32) and not NO_SEQUENCE.search(name)
        for name, t in arguments.items()
    )


def _feature_map(arguments: Arguments) -> tuple[str, Tensor] | None:
    """The argument that is (images, channels, height, width), and its name."""
    maps = (
        (name, t)
        for name, t in arguments.items()
        if isinstance(t, Tensor) and t.ndim == 4 and t.is_floating_point() and not NO_SEQUENCE.search(name)
    )
    return next(maps, None)


def _of_feature_map(kind: str, caller: nn.Module, arguments: Arguments, call: CapturedCall) -> AttentionPatches:
    """The patches of an attention inside a module that was called with an image or a feature map."""
    named = _feature_map(arguments)
    if named is None or len(named[1]) != call.shape[0]:  # windows of an image are rows of the batch
        return NO_PATCHES
    name, pixels = named
    queries, keys = (_of_grid(caller, pixels, size) for size in call.shape[2:])
    others = {
        other: t
        for other, t in arguments.items()
        if isinstance(t, Tensor) and t.ndim == 3 and not NO_SEQUENCE.search(other)
    }
    if kind == "self":
        # Of two sequences of equal length, either may be the one that attends.
        is_ambiguous = any(t.shape[1] == call.shape[3] for t in others.values())
        return NO_PATCHES if is_ambiguous or call.shape[2] != call.shape[3] else AttentionPatches(keys, keys)
    if KEY_SOURCES.fullmatch(name):
        return AttentionPatches((), keys)
    if any(KEY_SOURCES.fullmatch(other) for other in others):
        return AttentionPatches(queries, ())
    if others:
        return AttentionPatches(queries, ()) if QUERY_SOURCES.fullmatch(name) else NO_PATCHES
    # Learned queries read an image: fewer than it has patches.
    return NO_PATCHES if queries else AttentionPatches((), keys)


def _of_grid(caller: nn.Module, pixels: Tensor, tokens: int) -> tuple[ImagePatches, ...]:
    """The patches where so many tokens are those of an image; class and register tokens stand before them."""
    for rows, columns in _grids(caller, pixels):
        extra = tokens - rows * columns
        if 0 <= extra <= (MAX_EXTRA_TOKENS if (rows, columns) != tuple(pixels.shape[2:]) else 0):
            return tuple(ImagePatches(row, row, extra, rows, columns, columns) for row in range(len(pixels)))
    return ()


def _grids(caller: nn.Module, pixels: Tensor) -> Iterator[tuple[int, int]]:
    """The rows and columns of patches that a module can make of an image: its positions, or what a convolution reads.

    Without a convolution that cuts it into patches, nothing is known of their size.
    """
    height, width = pixels.shape[2:]
    sizes = {
        conv.stride: None
        for conv in caller.modules()
        if isinstance(conv, nn.Conv2d) and conv.stride == conv.kernel_size and conv.in_channels == pixels.shape[1]
    }
    for down, right in [(1, 1), *sizes]:
        if down <= height and right <= width:
            yield height // down, width // right
