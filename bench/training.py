"""Updates of GPT-2's 124M shape against transformers and against nanoGPT's design: tokens per second."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import regard
from bench.table import Row
from bench.timing import MATMUL, matmul, medians
from regard.training.config import build_config
from regard.training.loss_module import LossModule, build_optimizer
from regard.training.tasks import TASKS, Batch

TEXTS, TOKENS, ROUNDS = 4, 256, 7
LR, DECAY, CLIP = 1e-4, 0.1, 1.0


class Layer(nn.Module):
    """A block with its norms in front, as nanoGPT has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.up_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation = nn.GELU(approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        texts, tokens, width = x.shape
        parts = self.qkv(self.norm(x)).split(width, dim=2)
        q, k, v = (part.view(texts, tokens, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(texts, tokens, width))
        return x + self.down(self.activation(self.up(self.up_norm(x))))


class Plain(nn.Module):
    """nanoGPT's design: fused projections, PyTorch's attention, one cross-entropy over all positions."""

    def __init__(self, theirs: transformers.GPT2LMHeadModel) -> None:
        super().__init__()
        config = theirs.config
        self.token = nn.Embedding(config.vocab_size, config.n_embd)
        self.position = nn.Embedding(config.n_positions, config.n_embd)
        self.layers = nn.ModuleList(Layer(config.n_embd, config.n_head) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.token.weight
        # The rival's tensors in the rival's order, its projections transposed.
        own = [self.token.weight, self.position.weight]
        for layer in self.layers:
            parts = (layer.norm, layer.qkv, layer.out, layer.up_norm, layer.up, layer.down)
            own += [parameter for part in parts for parameter in (part.weight, part.bias)]
        own += [self.norm.weight, self.norm.bias]
        with torch.no_grad():
            for (name, value), parameter in zip(theirs.named_parameters(), own, strict=True):
                parameter.copy_(value.t() if ".c_" in name and value.ndim == 2 else value)

    def forward(self, ids: Tensor) -> Tensor:  # noqa: D102
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:  # noqa: D102
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten())


def _update(loss: Callable[[], Tensor], model: nn.Module) -> Callable[[], float]:
    """An update as the trainer makes it, with its optimizer; it returns the loss."""
    optimizer = build_optimizer(model, learning_rate=LR, weight_decay=DECAY)
    model.train()

    def call() -> float:
        found = loss()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return float(found.detach())

    return call


@dataclass
class GPT2Updates:
    """Updates of three models of the same weights, on the same tokens, without dropout."""

    ours: Callable[[], float]
    transformers: Callable[[], float]
    plain: Callable[[], float]
    config: transformers.GPT2Config


def gpt2_updates(texts: int, tokens: int, device: str = "cpu", half: bool = False, **changes: Any) -> GPT2Updates:
    """Make them, and compare the losses of the first update, in which the optimizers make their memory too.

    Args:
        texts: in a batch.
        tokens: in a text.
        device: where the models are.
        half: compute in bfloat16 under autocast.
        changes: fields of the configuration.
    """
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**none, **changes))
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = regard.load(Path(folder)).model
    plain = Plain(theirs)
    for model in (ours, theirs, plain):
        model.to(device)
    drawn = torch.Generator().manual_seed(0)
    text = torch.randint(theirs.config.vocab_size, (texts, tokens + 1), generator=drawn).to(device)
    ids, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    task = TASKS["lm"](build_config("lm", {"max_length": max(tokens, 256)}))
    examples = [
        {"ids": some, "targets": following, "location": f"row {row}"}
        for row, (some, following) in enumerate(zip(ids.tolist(), targets.tolist(), strict=True))
    ]
    batch: Batch = task.batch(examples)
    tensors = {name: t.to(device) for name, t in batch.tensors.items()}
    loss_module = LossModule(ours, task)
    losses: list[tuple[Callable[[], Tensor], nn.Module]] = [
        (lambda: loss_module(tensors, 1 / batch.num_predicted), loss_module),
        # It moves the targets by itself, so that it predicts one token less of each text.
        (lambda: theirs(ids, labels=ids).loss, theirs),
        (lambda: plain.loss(ids, targets), plain),
    ]

    def in_half(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=half):
                return loss()

        return call

    calls = [_update(in_half(loss), model) for loss, model in losses]
    first = [call() for call in calls]
    if max(first) - min(first) > 0.05 or abs(first[0] - first[2]) > (1e-2 if half else 1e-4):
        raise AssertionError(f"not the same losses: {first}")
    return GPT2Updates(*calls, theirs.config)


def updates(rounds: int = ROUNDS, **changes: Any) -> Iterator[Row]:
    """The same weights and tokens for all three, no dropout."""
    made = gpt2_updates(TEXTS, TOKENS, **changes)
    mine, its, plains, product = medians(made.ours, made.transformers, made.plain, matmul(), rounds=rounds, warm=False)
    floor = _operations(made.config) / (MATMUL / product)
    for against, seconds, bar in (("transformers, sdpa", its, "1.1x"), ("nanoGPT's design with SDPA", plains, "1.1x")):
        case = f"update of GPT-2 124M shape, {TEXTS} x {TOKENS} tokens, float32"
        yield Row(case, against, f"{seconds / mine:.2f}x", bar, f"{mine / floor:.2f}x")


def _operations(config: transformers.GPT2Config) -> int:
    """Of the products of an update: each weight's forward, and backward to its input and to itself."""
    width, tokens = config.n_embd, TEXTS * TOKENS
    weights = 12 * config.n_layer * width**2 + config.vocab_size * width
    attended = config.n_layer * tokens * TOKENS * width  # half of the square, twice: scores, and weights times values
    return 6 * weights * tokens + 6 * attended
