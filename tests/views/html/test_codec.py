"""Numbers on their way into a page and out of it: written by Python, read by the page's own module."""

import random

import torch

from regard.views.html.codec import FORBIDDEN_CODES, MAX_INT16, BinaryPack, encode_seven_bits, gzip_bytes


def read(node, data, num_int16=0, refs=()):
    """What the page's module reads: the bytes, and the numbers of each array."""
    text = encode_seven_bits(packed := gzip_bytes(data))
    answer = node("arrays", {"text": text, "length": len(packed), "numInt16": num_int16, "refs": refs})
    return bytes.fromhex(answer["bytes"]), answer["arrays"]


def test_every_kind_of_number_comes_back(node):
    pack = BinaryPack()
    rows, flat, fine, shares = torch.randn(5, 3), torch.linspace(-2, 2, 9), torch.randn(4, 4), torch.rand(7)
    whole, bits = torch.tensor([-70000, 0, 2**20]), torch.rand(3, 5) < 0.5
    extreme = torch.tensor([[-1.0, 1.0], [0.0, 1.0]]) * MAX_INT16 * 0.01
    # In turns, so that no array stands where it would stand alone; and how far off each number may be.
    added = [
        (bits, pack.bits(bits), 0),
        (rows, pack.int16(rows, 0.001), 0.000501),
        (fine, pack.int32_scaled(fine), 1e-8),
        (flat, pack.int16(flat, 0.01), 0.00501),
        (shares, pack.uint8(shares), 0.5001 / 255),
        (extreme, pack.int16(extreme, 0.01), 1e-4),
        (whole, pack.int32(whole), 0),
        # What 16 bits cannot say is the nearest that they can.
        (torch.tensor([MAX_INT16, -MAX_INT16]) * 0.01, pack.int16(torch.tensor([1e9, -1e9]), 0.01), 1e-4),
        (torch.zeros(0, 4), pack.int16(torch.zeros(0, 4), 1.0), 0),
        (torch.zeros(0), pack.int32_scaled(torch.zeros(0)), 0),
        (torch.zeros(0), pack.bits(torch.zeros(0).bool()), 0),
    ]
    data, arrays = read(node, pack.bytes(), pack.num_int16, [ref for _, ref, _ in added])
    assert data == pack.bytes()
    for (t, ref, error), numbers in zip(added, arrays, strict=True):
        assert ref["shape"] == list(t.shape)
        found = torch.tensor(numbers, dtype=torch.float64).view(t.shape)
        torch.testing.assert_close(found, t.double(), atol=error, rtol=0)


def test_any_bytes_come_back(node):
    draw = random.Random(0)
    for length in [*range(24), 1000, 65537]:
        data = draw.randbytes(length)
        assert read(node, data)[0] == data


def test_seven_bits_are_text_that_a_script_element_may_hold():
    """Also where all that may not be written stands side by side, in runs of any length."""
    draw = random.Random(0)
    runs = ((f"{code:07b}" * n).ljust(8 * n, "1") for code in FORBIDDEN_CODES for n in range(1, 18))
    repeated = [int(bits, 2).to_bytes(len(bits) // 8) for bits in runs]
    for data in [*map(bytes, range(20)), *repeated, *map(draw.randbytes, range(100))]:
        text = encode_seven_bits(data)
        assert not set(text) & set("\0\n\r<")
        assert all(ord(letter) < 0x80 or 0x100 <= ord(letter) < 0x300 for letter in text)
        assert len(text.encode()) <= len(data) * 8 / 7 + 2
        assert bits_of(text)[: len(data) * 8] == "".join(f"{byte:08b}" for byte in data)


def bits_of(text):
    """The bits that a text holds."""
    pairs = (divmod(ord(letter), 0x80) for letter in text)
    codes = {0: "", **dict(enumerate((f"{ord(letter):07b}" for letter in "\0\n\r<"), 2))}
    return "".join(codes[high] + f"{low:07b}" for high, low in pairs)
