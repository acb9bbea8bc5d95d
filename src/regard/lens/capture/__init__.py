"""Capture of attention calls while a model runs, with unchanged outputs.

PyTorch offers two places to intercept: a function mode sees what the model's Python code calls and costs little, but
it turns PyTorch's fused layers off and does not see inside FlexAttention; a dispatch mode sees every operation below.

- `eager_pattern`: follows eager attention, a softmax between two matrix products.
- `eager_weights`: the call of such an attention in the model's own code, from the weights that it computed.
- `call`: `CapturedCall`, the arguments of one attention and sampled rows of its output.
- `fast_path`: PyTorch's fused layers, of which only inputs, weights and the output are known.
- `sequence`: `CallSequence`, which calls of a module belong together: a forward pass, or all steps of a generation.
- `keys`: the keys of two calls compared, by which they are known to belong together.
- `merge`: their map.
- `kind`: whether an attention is self- or cross-attention.
- `patches`: `PatchFinder`, which of its queries and keys are patches of an image.
- `module_finder`: `ModuleFinder`, which of a model's modules computes an attention.
- `recorder`: `CallRecorder`, which sorts the calls by module.
- `unseen`: modules that are named as attentions, and in which none was seen.
- `dispatch_mode`: capture of PyTorch's operations.
- `function_mode`: capture of Python calls.
"""
