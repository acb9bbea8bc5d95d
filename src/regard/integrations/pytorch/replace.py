"""`regard.replace`: PyTorch's attention modules of any model become regard's, with the same weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.attention.hooks import hook_state
from regard.integrations.pytorch.candidates import Candidate, find_candidates
from regard.integrations.pytorch.modules import Replacement, replacement_class
from regard.integrations.pytorch.proof import largest_difference, prove_call
from regard.integrations.pytorch.replaced import Replaced, ReplacedModule, restore_classes
from regard.integrations.pytorch.samples import sample_calls

MODEL_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""The largest difference of a model's outputs that counts as rounding, as a share of their largest number. It has grown
through all the layers; the proofs of the modules, each with equal inputs, are far stricter."""


def replace(model: nn.Module, example_inputs: Any = None, *, skip: Collection[str] = ()) -> Replaced:
    """Replace PyTorch's attention in a model by regard's, prove that it is equal, and be able to undo it.

    ::

        replaced = regard.replace(model, (x, mask))
        print(replaced)  # what was replaced, and how near it is
        replaced.restore()
        with regard.replace(model):  # or for a block
            y = model(x)

    Every ``nn.MultiheadAttention``, and every ``nn.TransformerEncoderLayer`` around one, gets another class. All else
    stays: the module objects and their paths, parameters, an optimizer's state, state_dict, hooks, the training mode,
    and how the modules are called, so that ``nn.TransformerEncoder``, ``nn.TransformerDecoderLayer``,
    ``nn.Transformer`` and code of your own need no change. Copies and ``torch.save`` of the whole model keep the
    replacement.

    What is gained: a mask that is causal or a window is found to be one, so that blocked pairs are not computed, and no
    weights are stored for the backward pass. A query that may attend to nothing gets zeros, never NaN. Short texts in
    inference, dropout in training and weights that are asked for can be slower than PyTorch's (BENCHMARKS.md): pass
    ``need_weights=False`` where nobody reads them. Dropout draws other random numbers than PyTorch's.

    Before it returns, every module is proved equal to PyTorch's, with its outputs, weights and gradients, in float64
    and in its own dtype. With example inputs these are the calls that the model makes, and the outputs of the whole
    model are compared as well: the model runs three times, in evaluation mode. What the example does not reach, or
    everything without an example, is proved on random input of its width, with masks of each kind.

    Args:
        model: any model. It may be an ``nn.MultiheadAttention`` itself.
        example_inputs: what the model is called with: a tuple of positional arguments, a dict of keyword arguments, or
            the only argument.
        skip: paths of modules to leave as they are, with all below them.

    Returns:
        `Replaced`: ``.modules``, a table as its text, ``.restore()``; a context manager.

    Raises:
        TypeError: the model is no module.
        KeyError: a path to skip that is no module of the model.
        ValueError: there is nothing to replace; a module that cannot be (a subclass with a forward of its own,
            parametrized, quantized, compiled), each by its name and with the reason; a result that differs; a model
            that is being watched. Nothing is replaced then.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"replace(model) wants a torch.nn.Module; got {type(model).__name__}")
    if hook_state.hooks:
        raise ValueError(
            "a model is being watched or edited: replace it before `with regard.watch` or `regard.intervene`"
        )
    found = find_candidates(model, skip)
    if not found.modules:
        raise ValueError(_nothing(model, found.notes))
    proofs = _Proofs(found.modules)
    with _evaluating(model):
        before = None if example_inputs is None else _run_recorded(model, example_inputs, proofs)
        proofs.complete()
        modules = tuple(proofs.records())
        parts = [candidate.module for candidate in found.modules]
        for part in parts:
            part.__class__ = replacement_class(type(part))
        try:
            difference = None if before is None else _difference(before, _run(model, example_inputs))
        except BaseException:
            restore_classes(parts)
            raise
    return Replaced(model, parts, modules, difference, tuple(found.notes))


def _nothing(model: nn.Module, notes: list[str]) -> str:
    done = sum(isinstance(module, Replacement) for module in model.modules())
    if done:
        return f"all {done} modules of {type(model).__name__} that could be replaced are replaced already"
    return f"{type(model).__name__} has no nn.MultiheadAttention to replace{''.join(f'; {note}' for note in notes)}"


class _Proofs:
    """The proofs of the modules, one call after the other."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self._candidates = candidates
        self._differences: dict[int, list[float]] = {id(c.module): [] for c in candidates}
        self._proved_on = dict.fromkeys(self._differences, "example inputs")

    def hook(self, candidate: Candidate, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A forward hook that proves the call it sees."""
        self._prove(candidate, args, kwargs)

    def complete(self) -> None:
        """Prove on random input the modules that no call has reached."""
        for candidate in self._candidates:
            if not self._differences[id(candidate.module)]:
                self._proved_on[id(candidate.module)] = "random input"
                for args, kwargs in sample_calls(candidate.module):
                    self._prove(candidate, args, kwargs)

    def records(self) -> Iterator[ReplacedModule]:
        for candidate in self._candidates:
            module = candidate.module
            differences = self._differences[id(module)]
            yield ReplacedModule(
                candidate.paths,
                type(module),
                replacement_class(type(module)),
                max(differences),
                len(differences),
                self._proved_on[id(module)],
            )

    def _prove(self, candidate: Candidate, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        module = candidate.module
        try:
            difference = prove_call(module, args, kwargs)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            path = candidate.paths[0] or "the model itself"
            raise ValueError(
                f"cannot replace {path} ({type(module).__name__}): {error}. Nothing was replaced"
            ) from error
        self._differences[id(module)].append(difference)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, and the random numbers as they were."""
    training = [module for module in model.modules() if module.training]
    devices = {p.device.index or 0 for p in model.parameters() if p.is_cuda}
    with torch.no_grad(), torch.random.fork_rng(sorted(devices)):
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True


def _run_recorded(model: nn.Module, example_inputs: Any, proofs: _Proofs) -> list[Tensor]:
    """The outputs of the model as it is; before, every call of a candidate is proved."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        # The fused layers would not call their modules.
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        for candidate in proofs._candidates:
            handle = candidate.module.register_forward_hook(partial(proofs.hook, candidate), with_kwargs=True)
            stack.callback(handle.remove)
        _run(model, example_inputs)
    return _run(model, example_inputs)


def _run(model: nn.Module, example_inputs: Any) -> list[Tensor]:
    """The tensors that the model returns."""
    torch.manual_seed(0)
    if isinstance(example_inputs, dict):
        output = model(**example_inputs)
    else:
        output = model(*example_inputs) if isinstance(example_inputs, tuple) else model(example_inputs)
    return list(_tensors(output))


def _tensors(output: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            yield leaf.to_padded_tensor(0.0) if leaf.is_nested else leaf
        elif hasattr(leaf, "__dict__"):
            yield from _tensors(dict(vars(leaf)))


def _difference(before: list[Tensor], after: list[Tensor]) -> float:
    """The largest difference of the model's outputs.

    Raises:
        ValueError: it is more than rounding, or there was nothing to compare.
    """
    if not before or len(before) != len(after):
        raise ValueError(
            f"the model returned {len(before)} tensors before and {len(after)} after the replacement, so its "
            "outputs could not be compared. Nothing was replaced; without example_inputs each module is proved alone"
        )
    largest = 0.0
    for number, (expected, actual) in enumerate(zip(before, after, strict=True)):
        difference, scale = largest_difference(expected, actual)
        if not bool(expected.isfinite().any()):
            raise ValueError(
                f"output {number} of the model has no finite number, so nothing could be compared. Nothing was replaced"
            )
        allowed = MODEL_ROUNDING.get(expected.dtype, 0.0) * scale
        if not difference <= allowed:
            raise ValueError(
                f"output {number} of the model differs by {difference:.2g} where the largest number is {scale:.2g}; "
                f"rounding explains {allowed:.2g}, and every module by itself is equal. Nothing was replaced"
            )
        largest = max(largest, difference)
    return largest
