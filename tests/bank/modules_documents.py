"""The classes of the source documents with their own defects, in our words."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from bank import right, wrong


class _Head(nn.Module):
    def __init__(self, d_model=2, row_dim=0, col_dim=1):
        super().__init__()
        self.W_q = nn.Linear(in_features=d_model, out_features=d_model, bias=False)
        self.W_k, self.W_v = (nn.Linear(in_features=d_model, out_features=d_model, bias=False) for _ in range(2))
        self.row_dim = row_dim
        self.col_dim = col_dim


@wrong("absolute-axes")
class SelfAttention(_Head):
    """Of document 000 (and 001)."""

    def forward(self, token_encodings):
        queries, keys, values = self.W_q(token_encodings), self.W_k(token_encodings), self.W_v(token_encodings)
        similarities = torch.matmul(queries, keys.transpose(dim0=self.row_dim, dim1=self.col_dim))
        scaled = similarities / torch.tensor(keys.size(self.col_dim) ** 0.5)
        shares = F.softmax(scaled, dim=self.col_dim)
        return torch.matmul(shares, values)


@wrong("absolute-axes")
class MaskedSelfAttention(_Head):
    """Of document 000; True in the mask is blocked."""

    def forward(self, token_encodings, mask=None):
        queries, keys, values = self.W_q(token_encodings), self.W_k(token_encodings), self.W_v(token_encodings)
        similarities = torch.matmul(queries, keys.transpose(dim0=self.row_dim, dim1=self.col_dim))
        scaled = similarities / torch.tensor(keys.size(self.col_dim) ** 0.5)
        if mask is not None:
            scaled = scaled.masked_fill(mask=mask, value=-1e9)
        shares = F.softmax(scaled, dim=self.col_dim)
        return torch.matmul(shares, values)


class Attention(_Head):
    """Of documents 000 and 004: one head, as wide as the model."""

    def forward(self, encodings_for_q, encodings_for_k, encodings_for_v, mask=None):
        queries, keys, values = self.W_q(encodings_for_q), self.W_k(encodings_for_k), self.W_v(encodings_for_v)
        similarities = torch.matmul(queries, keys.transpose(dim0=self.row_dim, dim1=self.col_dim))
        scaled = similarities / keys.size(self.col_dim) ** 0.5
        if mask is not None:
            scaled = scaled.masked_fill(mask=mask, value=-1e9)
        shares = torch.softmax(scaled, dim=self.col_dim)
        return torch.matmul(shares, values)


@right("design", says="no mask argument", args={"row_dim": 1, "col_dim": 2})
class MultiHeadAttention(nn.Module):
    """Of document 000, given the axes of a batch: no mask argument, no output projection."""

    def __init__(self, d_model=2, row_dim=0, col_dim=1, num_heads=1):
        super().__init__()
        self.heads = nn.ModuleList([Attention(d_model, row_dim, col_dim) for _ in range(num_heads)])
        self.col_dim = col_dim

    def forward(self, encodings_for_q, encodings_for_k, encodings_for_v):
        each = [head(encodings_for_q, encodings_for_k, encodings_for_v) for head in self.heads]
        return torch.cat(each, dim=self.col_dim)


@wrong("mask-not-passed", also=("absolute-axes",), dear=True)
class MultiHeadedAttention(nn.Module):
    """Of document 004."""

    def __init__(self, d_model, row_dim=0, col_dim=1, num_heads=1):
        super().__init__()
        self.row_dim = row_dim
        self.col_dim = col_dim
        self.d_model = d_model
        self.heads = nn.ModuleList([Attention(d_model, row_dim, col_dim) for _ in range(num_heads)])

    def forward(self, q_encodings_matrix, k_encodings_matrix, v_encodings_matrix, mask=None):
        matrices = q_encodings_matrix, k_encodings_matrix, v_encodings_matrix
        return torch.cat([head(*matrices, mask=None) for head in self.heads], dim=self.col_dim)


@wrong("mask-not-passed", dear=True)
class BatchedMultiHeadedAttention(MultiHeadedAttention):
    """Of document 004, with the axes counted from the end, so that a batch is right."""

    def __init__(self, d_model, num_heads=1):
        super().__init__(d_model, row_dim=-2, col_dim=-1, num_heads=num_heads)


head_size = 16


@wrong("scale-constant")
class AttentionHead(nn.Module):
    """Of document 003."""

    def __init__(self, embed_dim, head_size):
        super().__init__()
        self.query = nn.Linear(in_features=embed_dim, out_features=head_size, bias=False)
        self.key, self.value = (nn.Linear(in_features=embed_dim, out_features=head_size, bias=False) for _ in range(2))

    def forward(self, x):
        Q, K, V = self.query(x), self.key(x), self.value(x)
        scores = torch.matmul(Q, K.transpose(-1, -2))
        scores = scores * head_size**-0.5
        weights = F.softmax(scores, dim=-1)
        return torch.matmul(weights, V)


@wrong("scale-constant")
class MultiHeadSelfAttention(nn.Module):
    """Of document 003, where it is called MultiHeadAttention; the width of a head is its own, as in the R twin."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.head_size = embed_dim // num_heads
        assert self.head_size * num_heads == embed_dim, "embed_dim must be divisible by num_heads"
        self.heads = nn.ModuleList([AttentionHead(embed_dim, self.head_size) for _ in range(num_heads)])
        self.output_linear = nn.Linear(in_features=embed_dim, out_features=embed_dim)

    def forward(self, x):
        each = [head(x) for head in self.heads]
        return self.output_linear(torch.cat(each, dim=-1))
