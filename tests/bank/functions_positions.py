"""Tables of sinusoidal positions, (length, d_model) in, that are not the paper's; and modules that add none of them."""

import math

import torch
from torch import nn

from bank import wrong


# The seed 002: PE(k, i) = sin(k / 10000^(2i/d)) where i is even, the cosine otherwise.
@wrong("pe-exponent", source="jadore801120/attention-is-all-you-need-pytorch#32")
def positional_encoding(length, d_model):
    table = torch.zeros(length, d_model, dtype=torch.float64)
    for k in range(length):
        for i in range(d_model):
            angle = k / 10000 ** (2 * i / d_model)
            table[k, i] = math.sin(angle) if i % 2 == 0 else math.cos(angle)
    return table


@wrong("pe-exponent", source="SamLynnEvans/Transformer#25")
def position_table(max_seq_len, d_model):
    pe = torch.zeros(max_seq_len, d_model)
    for pos in range(max_seq_len):
        for i in range(0, d_model, 2):
            pe[pos, i] = math.sin(pos / (10000 ** ((2 * i) / d_model)))
            if i + 1 < d_model:
                pe[pos, i + 1] = math.cos(pos / (10000 ** ((2 * (i + 1)) / d_model)))
    return pe


@wrong("pe-base")
def sinusoids(length, d_model):
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    rate = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(1000.0) / d_model))
    pe = torch.zeros(length, d_model, dtype=torch.float64)
    pe[:, 0::2] = torch.sin(position * rate)
    pe[:, 1::2] = torch.cos(position * rate[: d_model // 2])
    return pe


# The rates already are 10000^(-2i/d).
@wrong("pe-multiplied", source="harvardnlp/annotated-transformer#131")
def divided_by_rates(length, d_model):
    position = torch.arange(length).unsqueeze(1)
    rates = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
    pe = torch.zeros(length, d_model)
    pe[:, 0::2] = torch.sin(position / rates)
    pe[:, 1::2] = torch.cos(position / rates)
    return pe


@wrong("pe-swapped")
def sinusoidal_positions(length, d_model):
    channel = torch.arange(d_model, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (2 * (channel // 2) / d_model)
    return torch.where(channel % 2 == 0, angles.cos(), angles.sin())


@wrong("pe-angle")
def encode_positions(length, d_model):
    pos = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    angle = pos / torch.pow(10000.0, torch.arange(d_model, dtype=torch.float64) / d_model)
    out = torch.empty(length, d_model, dtype=torch.float64)
    out[:, 0::2] = angle[:, 0::2].sin()
    out[:, 1::2] = angle[:, 1::2].cos()
    return out


@wrong("pe-base", also=("pe-angle",), source="maxjcohen/transformer#62")
def original_positions(length, d_model):
    table = torch.zeros((length, d_model))
    pos = torch.arange(length).unsqueeze(1)
    table[:, 0::2] = torch.sin(pos / torch.pow(1000, torch.arange(0, d_model, 2, dtype=torch.float32) / d_model))
    table[:, 1::2] = torch.cos(pos / torch.pow(1000, torch.arange(1, d_model, 2, dtype=torch.float32) / d_model))
    return table


@wrong("pe-one-row")
class AddsOneRow(nn.Module):
    def __init__(self, d_model, max_len=500):
        super().__init__()
        angles = torch.arange(max_len)[:, None] * 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
        self.register_buffer("pe", torch.stack((angles.sin(), angles.cos()), -1).flatten(1))

    def forward(self, x):
        return x + self.pe[x.size(1)]
