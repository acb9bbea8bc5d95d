"""What a file has that can be checked: read from its text."""

import pytest

from regard.check.source.candidates import candidates_of
from regard.errors import InputError

SOURCE = """\
import no_such_library
from torch import nn


def attention(q, k, v, mask=None):
    return anything(q, k, v)


def by_matrices(x, W_q, W_k, W_v):
    return softmax(x @ W_q @ (x @ W_k).T) @ (x @ W_v)


def softmax(x):
    return x.softmax(-1)


class CausalSelfAttention(nn.Module):
    def __init__(self, config, backend):
        super().__init__()

    def forward(self, x):
        return x


class Heads(nn.Module):
    def forward(self, x, context):
        return nn.functional.scaled_dot_product_attention(x, context, context)


class Inherits(Heads):
    pass


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn, self.mlp = Heads(), MLP()

    def forward(self, x):
        return self.mlp(self.attn(x, x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = [Block(4)], nn.MultiheadAttention(4, 2)


class MLP(nn.Module):
    def forward(self, x):
        return x


class Plain:
    def forward(self, query, key, value):
        return (query @ key.T).softmax(-1) @ value

    class Inner:
        def __call__(self, q, k, v):
            return (q @ k.T).softmax(-1) @ v


class Settings:
    heads = 3


try:
    made = Heads()
except Exception:
    def masked_attention(x):
        return x
"""

EXPECTED = [
    ("attention", 5, "attention", "a function: attention of q, k and v (q, k, v, mask)"),
    ("by_matrices", 9, "attention", "a function: self-attention (x, W_q, W_k, W_v)"),
    ("CausalSelfAttention", 17, "attention", "causal self-attention (x)"),
    ("Heads", 25, "attention", "cross-attention (x, context)"),
    ("Inherits", 30, "attention", "cross-attention (x, context)"),
    ("Block", 34, "contains", "contains Heads"),
    ("Model", 43, "contains", "contains MultiheadAttention, Heads"),
    ("MLP", 49, "module", "a module; no attention was seen in it"),
    ("Plain", 54, "attention", "attention of q, k and v (query, key, value)"),
    ("Plain.Inner", 58, "attention", "attention of q, k and v (q, k, v)"),
    ("made", 68, "attention", "an object: cross-attention (x, context)"),
    ("masked_attention", 70, "attention", "a function: self-attention (x)"),
]


def test_functions_classes_and_objects_with_their_lines_and_what_they_seem_to_be(tmp_path):
    path = tmp_path / "a file.py"
    path.write_text(SOURCE)
    found = candidates_of(str(path))
    assert [(each.name, each.line, each.kind, each.description) for each in found] == EXPECTED
    commands = {each.name: each.command for each in found}
    assert commands["Plain.Inner"] == f"regard check '{path}:Plain.Inner'"
    assert commands["CausalSelfAttention"] == f"regard check '{path}:CausalSelfAttention' --arg backend=..."
    assert all(each.cell is None for each in found)


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, ": no such file"), ("x = 1\ndef f(:\n", ":2: not Python: "), ("x = '\0'", ": not Python: ")],
)
def test_what_is_no_python_is_one_line(tmp_path, text, says):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        candidates_of(str(path))
    assert str(caught.value).startswith(f"{path}{says}")
