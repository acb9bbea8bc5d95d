"""Lines of code that make the numbers of the course: three tokens of two numbers, and weights drawn with seed 42.

The three vectors stand in the tutorials for the words "Write", "a" and "poem" of the course's sentence. They are made
up for the purpose, and no embeddings of a trained model.
"""

from __future__ import annotations

__all__ = ["QKV", "WEIGHTS", "X"]

X = "X = torch.tensor([[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]])  # (tokens, d_model): Write, a, poem"
WEIGHTS = """torch.manual_seed(42)
W_q, W_k, W_v, W_o = (torch.nn.Linear(2, 2, bias=False).weight.detach() for _ in range(4))  # (d_out, d_in) each"""
QKV = f"""{X}
torch.manual_seed(42)
Q, K, V = (torch.nn.Linear(2, 2, bias=False)(X).detach() for _ in range(3))  # (tokens, d_k) each"""
