"""Tables of sines and cosines of a grid, which a module adds to maps of features."""

import math

import torch
from torch import nn

from bank import right, wrong


class GridPositions(nn.Module):
    def __init__(self, d_model, size=(32, 32)):
        super().__init__()
        pe = torch.zeros(d_model, *size)
        rows = torch.arange(size[0]).float()[:, None].expand(size)
        columns = torch.arange(size[1]).float().expand(size)
        rates = self.rates(d_model)[:, None, None]
        pe[0::4], pe[1::4] = torch.sin(columns * rates), torch.cos(columns * rates)
        pe[2::4], pe[3::4] = torch.sin(rows * rates), torch.cos(rows * rates)
        self.register_buffer("pe", pe[None], persistent=False)

    def rates(self, d_model):
        return torch.exp(torch.arange(0, d_model // 2, 2).float() * (-math.log(10000.0) / (d_model // 2)))

    def forward(self, x):
        return x + self.pe[:, :, : x.size(2), : x.size(3)]


@right("right")
class PositionsOfMaps(GridPositions):
    pass


@wrong("pe-frequencies", source="zju3dv/LoFTR#41")
class PositionsByAWholeQuotient(GridPositions):
    def rates(self, d_model):
        return torch.exp(torch.arange(0, d_model // 2, 2).float() * (-math.log(10000.0) / d_model // 2))
