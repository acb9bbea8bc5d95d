"""Tensors of a GGUF file: every type against `gguf.dequantize`; what loading copies, imports and takes of memory."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from regard import InputError
from regard.pretrained.gguf.header import read_header
from regard.pretrained.gguf.tensors import CHUNK_VALUES, StoredTensor
from regard.pretrained.renames import Rename, load_weights

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
TYPES += ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"]
TYPES += ["TQ1_0", "TQ2_0", "MXFP4"]
SHAPE = (3, CHUNK_VALUES // 2 - 256)
"""More than one chunk; no chunk ends with a row."""


@pytest.fixture
def stored(tmp_path):
    """A function that writes a tensor of random blocks of a type: the tensor of the file, and its values."""

    def write(kind, shape=SHAPE, **options):
        values_of_block, bytes_of_block = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        generator = np.random.default_rng(0)
        rows = generator.integers(0, 256, (shape[0], shape[1] // values_of_block * bytes_of_block), dtype=np.uint8)
        writer = gguf.GGUFWriter(tmp_path / "tensor.gguf", "llama")
        writer.add_tensor("x", rows, raw_dtype=GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        header = read_header(tmp_path / "tensor.gguf")
        with np.errstate(all="ignore"):
            values = np.array(gguf.dequantize(rows, GGMLQuantizationType[kind]), np.float32)
        return StoredTensor(header, header.tensors["x"], **options), torch.from_numpy(values)

    return write


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_dequantised_as_the_package_does_it(stored, kind):
    tensor, expected = stored(kind)
    assert (tensor.shape, tensor.dtype) == (SHAPE, torch.float32)
    values = torch.empty(SHAPE)
    tensor.copy_to(values)
    same(values, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_values_are_rounded_once_into_any_dtype_and_into_any_view(stored, dtype):
    tensor, expected = stored("Q8_0")
    for destination in (torch.empty(SHAPE, dtype=dtype), torch.empty(SHAPE[::-1], dtype=dtype).T):
        tensor.copy_to(destination)
        same(destination, expected.to(dtype))


@pytest.mark.parametrize("transform", [None, lambda values: values - 1])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_tensor_may_be_transposed_and_changed(stored, is_transposed, transform):
    tensor, expected = stored("Q4_0", (4, 64), is_transposed=is_transposed, transform=transform)
    expected = expected if transform is None else expected - 1
    expected = expected.T if is_transposed else expected
    assert tensor.shape == expected.shape
    for destination in (torch.empty(expected.shape), torch.empty(expected.T.shape).T):
        tensor.copy_to(destination)
        same(destination, expected)


class Untouchable:
    """A lazy tensor whose values nobody may want."""

    shape, dtype = (3, 3), torch.float32

    def copy_to(self, destination):
        raise AssertionError("values were copied of weights that make no model")


@pytest.mark.parametrize("other", [{}, {"b": torch.ones(2)}, {"b": torch.ones(3), "c": torch.ones(3)}])
def test_nothing_is_dequantised_before_all_names_and_shapes_are_right(other):
    renames = [Rename("weight", ("a",)), Rename("bias", ("b",))]
    with pytest.raises(InputError, match=r"lacks b|has shape \(2,\)|has no place for: c"):
        load_weights(
            torch.nn.Linear(3, 3), {"a": Untouchable(), **other}, renames, dtype=torch.float32, source=Path("x.gguf")
        )


LOADED = """
import sys
import gguf, torch
import regard
def kib(name): return int(open("/proc/self/status").read().split(name + ":")[1].split()[0])
regard.load
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts anew
before = kib("VmRSS")
model = regard.load("smollm2", dtype=torch.bfloat16).model
print((kib("VmHWM") - before) * 1024 / sum(2 * p.numel() for p in model.parameters()))
print(*{"torch._dynamo", "sympy"} & set(sys.modules))
"""


@pytest.mark.more
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is measured as Linux says it")
def test_loading_takes_little_more_memory_than_the_model_and_imports_no_compiler():
    peak, imported = subprocess.run(
        [sys.executable, "-c", LOADED], check=True, capture_output=True, text=True
    ).stdout.split("\n")[:2]
    assert float(peak) < 1.5
    assert imported == ""
