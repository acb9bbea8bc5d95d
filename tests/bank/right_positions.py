"""Tables of sines and cosines: functions of (length, d_model)."""

import math

import torch

from bank import right


@right("right")
def sinusoids(length, d_model):
    table = torch.zeros(length, d_model)
    position = torch.arange(length).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
    table[:, 0::2] = torch.sin(position * div_term)
    table[:, 1::2] = torch.cos(position * div_term)
    return table


@right("right")
def sinusoids_one_by_one(max_len, d_model):
    pe = torch.zeros(max_len, d_model)
    for pos in range(max_len):
        for i in range(0, d_model, 2):
            pe[pos, i] = math.sin(pos / 10000 ** (i / d_model))
            pe[pos, i + 1] = math.cos(pos / 10000 ** (i / d_model))
    return pe


@right("right")
def sinusoids_by_parity(length, d_model):
    channel = torch.arange(d_model)
    angle = torch.arange(length)[:, None] / 10000 ** (2 * (channel // 2) / d_model)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


@right("convention", says="sines, then cosines")
def sines_then_cosines(length, d_model):
    rates = 10000 ** -(torch.arange(d_model // 2) / (d_model // 2))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
