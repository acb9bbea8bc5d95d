"""Whole blocks and decoders: the attentions inside, what is around them, and what becomes of masks, time and the batch.

Each attention is judged by itself. What is around it is shown by running the block: how it is wired, whether its masks
reach the attention, whether a later token moves an earlier output, and whether one sample moves another's.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.answer import error_text
from regard.check.causes import MISTAKES
from regard.check.diagnose import diagnose, triangular
from regard.check.names import role
from regard.check.probe import causal, drawn
from regard.check.search import Deadline
from regard.check.settings import modules_of
from regard.check.stage import Diagnosis, Stage
from regard.check.subject import FORMS, MaskFormat, Sizes, Subject, tensors_in
from regard.check.torch_settings import UserSettings
from regard.check.wiring import BlockAttention, alike, is_linear, is_norm, wired

__all__ = ["is_block", "judge_block"]

BATCH, TOKENS, CONTEXT = 2, 6, 7
BLOCKED = 1e-9
"""What may still pass where a mask blocks: exp(-10000) is 0, and sums are rounded."""


# What is inside. ------------------------------------------------------------------------------------------------------


def is_block(module: nn.Module) -> bool:
    """Whether there is more than an attention: its norms, a feed-forward network, an embedding."""
    inner = list(_attentions(module))
    if not inner:
        return False
    if any(one.whole for one in inner):
        return any(one.path for one in inner) and _has_more(module, [one.leaves for one in inner if one.whole])
    return True


def _attentions(module: nn.Module) -> Iterator[BlockAttention]:
    """The outermost submodules that are an attention and nothing else; projections that a block has of its own."""
    if not _projects(module):
        return
    if not _has_more(module, []):
        yield BlockAttention("", (module,), module, True)
        return
    within = [(path, child, list(_attentions(child))) for path, child in module.named_children() if _projects(child)]
    for path, _, found in within:
        for one in found:
            yield replace(one, path=f"{path}.{one.path}".rstrip("."))
    if not within:
        yield from _projections(module)


def _projects(module: nn.Module) -> bool:
    """Whether the projections of an attention are among its parameters."""
    roles = set()
    for path, parameter in module.named_parameters():
        is_role = role(path) if parameter.ndim > 1 else None
        if is_role in ("qkv", "kv") and parameter.ndim == 2 and max(parameter.shape) > 3 * min(parameter.shape):
            is_role = None  # the first map of a feed-forward network
        if not re.search("embed|norm|relative|(^|[.])w[tp]e[.]", path.lower()):
            roles.add(is_role)
    return {"q", "k", "v"} <= roles or "qkv" in roles or {"q", "kv"} <= roles


def _has_more(module: nn.Module, but: list[nn.Module]) -> bool:
    """Whether there are norms (but of queries and keys), embeddings or two linear maps beside an attention."""
    inside = {id(part) for each in but for part in each.modules()}
    others = 0
    for path, part in module.named_modules():
        if id(part) in inside:
            continue
        name = path.rpartition(".")[2].lower()
        if is_norm(part) and re.sub("norm|layer|ln|rms|[^a-z]", "", name) not in ("q", "k", "query", "key"):
            return True
        if isinstance(part, nn.Embedding) and not re.search("rel|bias", path.lower()):
            return True
        others += is_linear(part) and role(f"{path}.weight") in ((None,) if not but else (None, "out", "qkv"))
    return others >= 2


def _projections(module: nn.Module) -> Iterator[BlockAttention]:
    """The linear maps of a block that has an attention in its own code."""
    found: dict[str, nn.Module] = {}
    first, out = "", None
    for path, part in module.named_modules():
        is_role = role(f"{path}.weight") if is_linear(part) else None
        if is_role in ("q", "k", "v", "kv") or (is_role == "qkv" and "qkv" not in found):
            found.setdefault(is_role, part)
            first = first or path
        elif is_role == "out" and out is None and found and _square(part):
            out = part
    if found and out is not None:
        yield BlockAttention(first, tuple(found.values()), out, False)


def _square(part: nn.Module) -> bool:
    weight = getattr(part, "weight", None)
    return isinstance(weight, Tensor) and weight.shape[0] == weight.shape[1]


# How it is run. -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Outer:
    """The whole of what was handed over, and how it is called."""

    subject: Subject
    module: nn.Module
    width: int
    ids: bool = False
    layout: str = "btd"
    forms: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    """Of what the block draws by itself."""

    def names(self, *means: str) -> list[str]:
        return [name for name, each in self.subject.roles().items() if each in means]

    @property
    def inputs(self) -> tuple[str, str | None]:
        """The names of the arguments for x and for the context."""
        xs = self.names("x", "ids", "q")
        context = self.names("context")
        if len(xs) > 1 and not context and self.subject.called[xs[1]].default is inspect.Parameter.empty:
            return xs[1], xs[0]  # (src, tgt)
        return xs[0], context[0] if context else None

    def x(self, seed: int = 0, tokens: int = TOKENS, batch: int = BATCH) -> Tensor:
        """(batch, tokens, width), or ids; the same for the same seed."""
        if self.ids:
            least = min(each.num_embeddings for each in self.module.modules() if isinstance(each, nn.Embedding))
            return torch.randint(least, (batch, tokens), generator=torch.Generator().manual_seed(seed))
        return drawn(batch, tokens, self.width, seed=seed)

    def __call__(self, x: Tensor, context: Tensor | None = None, given: Mapping[str, Any] | None = None) -> Tensor:
        """What it returns: (batch, tokens, ...)."""
        to, other = self.inputs
        call: dict[str, Any] = {to: self.laid(x)}
        if other is not None:
            call[other] = self.laid(self.x(50, CONTEXT, len(x)) if context is None else context)
        for name, means in self.subject.roles().items():
            required = self.subject.called[name].default is inspect.Parameter.empty
            if name not in call and required and not means.startswith("size"):
                call[name] = False if means == "causal" else None
        torch.manual_seed(self.seed)
        with self.subject.settings.on():
            result = self.module(**{**call, **(given or {})})
        for tensor in tensors_in(result):
            if tensor.is_floating_point() and tensor.ndim >= 2 and tensor.shape[:2] == self.laid(x).shape[:2]:
                return self.laid(tensor.detach())
        raise RuntimeError(
            f"it returned {', '.join(str(tuple(each.shape)) for each in tensors_in(result)) or 'nothing'}"
        )

    def laid(self, tensor: Tensor) -> Tensor:
        """Batch first to its own layout, and back."""
        return tensor.transpose(0, 1).clone() if self.layout == "tbd" else tensor.clone()

    def moved(self, x: Tensor, sample: int | slice, token: int | slice) -> Tensor:
        """Another token in a sample."""
        other = x.clone()
        if self.ids:
            other[sample, token] = torch.where(x[sample, token] == 0, 1, x[sample, token] - 1)
        else:
            other[sample, token] = other[sample, token].flip(-1) * 1.3 + 0.7
        return other


def _called(subject: Subject) -> tuple[_Outer | None, str]:
    """The block, ready to be run, in the first layout in which samples do not mix and tokens do; or why it does not."""
    modules, _ = modules_of(subject)
    _, module, width, _ = modules[0]
    if subject.build is None:  # a block's own width is that of its attention
        inside = next((part for part in module.modules() if isinstance(part, nn.MultiheadAttention)), None)
        width = width if inside is None else inside.embed_dim
    failed, runs = "", []
    embeds = any(isinstance(each, nn.Embedding) for each in module.modules())
    for ids in (True, False) if subject.has("ids") else (False, True) if embeds else (False,):
        for layout in ("btd", "tbd"):
            outer = _Outer(subject, module, width, ids, layout)
            try:
                x = outer.x()
                before = outer(x)
                apart = torch.equal(before[0], outer(outer.moved(x, 1, slice(None)))[0])
                mixed = not torch.equal(before[0, -1], outer(outer.moved(x, 0, 0))[0, -1])
            except Exception as error:
                failed = failed or f"called with {outer.inputs[0]} {tuple(outer.x().shape)}, {error_text(error)}"
                continue
            runs.append(outer)
            if apart and mixed:
                return outer, ""
    return (runs[0] if runs else None), failed


# The verdict. ---------------------------------------------------------------------------------------------------------


def judge_block(subject: Subject, *, deadline: Deadline, judge: Callable[..., Diagnosis] = diagnose) -> Diagnosis:
    """What is wrong with a block, inside and around its attention.

    Args:
        subject: a block, a layer or a whole model.
        deadline: when the search gives up.
        judge: judges an attention that is by itself.
    """
    diagnosis = Diagnosis(subject)
    if not subject.roles() or not {"x", "ids", "q"} & set(subject.roles().values()):
        diagnosis.why.append(f"its arguments ({', '.join(subject.called)}) are not named x or ids")
        return diagnosis
    outer, failed = _called(subject)
    if outer is None:
        diagnosis.why.append(failed or "it could not be called")
        return diagnosis
    if outer.layout == "tbd":
        diagnosis.conventions.append("tokens first: (tokens, batch, d_model)")
    attentions = list(_attentions(outer.module))
    _judge_inner(diagnosis, outer, attentions, deadline, judge)
    inner = any(stage.found is not None and stage.found.causes for stage in diagnosis.stages)
    for look in (_inputs, _wiring, _context, _masks):
        try:
            look(diagnosis, outer, attentions)
        except Exception as error:
            diagnosis.why.append(f"called as a whole, {error_text(error)}")
    if not inner and not diagnosis.behaviour:
        _leaks(diagnosis, outer, attentions)
    return diagnosis


def _add(diagnosis: Diagnosis, cause: str, numbers: dict[str, object]) -> None:
    if not any(known.id == cause and old == numbers for known, old in diagnosis.behaviour):
        diagnosis.behaviour.append((MISTAKES[cause], numbers))


# Each attention by itself. --------------------------------------------------------------------------------------------


def _judge_inner(
    diagnosis: Diagnosis,
    outer: _Outer,
    attentions: list[BlockAttention],
    deadline: Deadline,
    judge: Callable[..., Diagnosis],
) -> None:
    """The stages of every attention, each class and role once."""
    seen = set()
    several = {}
    for one in attentions:
        key = (type(one.leaves), re.sub(r"\d+", "", one.path))
        if key not in seen:
            seen.add(key)
            several[one.path] = one
    left = len(several)
    for path, one in several.items():
        share = deadline.share(left)
        left -= 1
        found = None
        if one.whole and not _bound(one.leaves):
            with suppress(Exception):
                found = judge(_alone(diagnosis.subject, outer, one), deadline=share)
        if found is None or not found.stages:
            try:
                found = judge(_in_place(diagnosis.subject, outer, one), deadline=share)
            except Exception as error:
                diagnosis.why.append(f"{path}: it could not be checked by itself: {error_text(error)}")
                continue
        for stage in found.stages:
            diagnosis.stages.append(_prefixed(stage, path if one.whole else ""))
        diagnosis.setting = diagnosis.setting or (found.setting if len(several) == 1 else None)
        diagnosis.behaviour += found.behaviour
        diagnosis.why += [f"{path}: {why}" for why in found.why]
        for mine, theirs in ((diagnosis.conventions, found.conventions), (diagnosis.designs, found.designs)):
            mine += [f"{path}: {each}" for each in theirs]
        diagnosis.notes += [f"{path}: {note}" for note in found.notes]


def _prefixed(stage: Stage, path: str) -> Stage:
    before = f"{path}: " if path else ""
    return replace(
        stage,
        mask=f"{stage.mask} of {path}" if path and stage.mask else stage.mask,
        says=f"{before}{stage.says}" if stage.says else "",
        why=f"{before}{stage.why}" if stage.why else "",
    )


def _bound(module: nn.Module) -> bool:
    """Whether it needs what only the block can give it: positions turned into queries and keys."""
    means = Subject(type(module).__name__, module=module, kind=type(module)).roles()
    return bool({"rope", "cos", "sin"} & set(means.values()))


def _alone(subject: Subject, outer: _Outer, one: BlockAttention) -> Subject:
    """An attention as a subject of its own, of other sizes where the block can be made of other sizes."""
    kind = type(one.leaves)
    name, module = kind.__name__.lstrip("_"), copy.deepcopy(one.leaves)
    inner = Subject(name, kind=kind, module=module, file=subject.file, settings=subject.settings)
    if subject.build is not None:
        build = subject.build
        # The block was made with so many heads: `diagnose` reads that from what is said.
        inner.build = lambda sizes: (
            build(sizes)[0].get_submodule(one.path),
            [f"num_heads={sizes.heads}"],
        )
        inner.module = None
    return inner


class _InPlace(nn.Module):
    """An attention as its block calls it: the block runs, and reads x where the attention does."""

    def __init__(self, outer: _Outer, one: BlockAttention) -> None:
        super().__init__()
        self._kept = [outer, one]
        names = {id(part): path for path, part in outer.module.named_modules()}
        for part in dict.fromkeys((*one.enters, one.leaves)):
            self.add_module(names[id(part)].rpartition(".")[2] or "inner", part)
        for path, buffer in outer.module.named_buffers():
            if triangular(buffer):
                self.register_buffer(path.replace(".", "_"), buffer)
        for name in ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads"):
            for part in (outer.module, one.leaves):
                if isinstance(getattr(part, name, None), int):
                    setattr(self, name, getattr(part, name))

    def forward(self, x: Tensor) -> Tensor:
        """What the attention returns for x, with the masks that its block gives it."""
        return self._run(x, {})

    def _run(self, x: Tensor, masks: dict[str, Any]) -> Tensor:
        outer, one = self._kept
        assert isinstance(outer, _Outer)
        assert isinstance(one, BlockAttention)
        returned: list[Tensor] = []

        def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if returned:
                return None
            if args:
                return (x, *args[1:]), kwargs
            name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
            return args, {**kwargs, name: x}

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            returned.append(next(tensors_in(result)))

        with ExitStack() as stack:
            for part in one.enters:
                stack.callback(part.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(one.leaves.register_forward_hook(leave).remove)
            outer(outer.x(3, x.shape[1], len(x)), given={k: v for k, v in masks.items() if v is not None})
        return returned[0]


def _in_place(subject: Subject, outer: _Outer, one: BlockAttention) -> Subject:
    """An attention as a subject, run by its block; with the block's masks as its own."""
    masks = outer.names("mask", "padding", "causal") if not one.whole else []
    x = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def forward(self: _InPlace, x: Tensor, **given: Any) -> Tensor:
        return self._run(x, given)

    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [this, x, *(subject.called[name].replace(annotation=inspect.Parameter.empty) for name in masks)]
    )
    kind = type(subject.name, (_InPlace,), {"forward": forward})
    inner = Subject(subject.name, kind=kind, file=subject.file, settings=subject.settings)

    def build(sizes: Sizes) -> tuple[nn.Module, list[str]]:
        other, said = subject.build(sizes) if subject.build is not None else (copy.deepcopy(outer.module), [])
        other = other.double().eval()
        found = next(each for each in _attentions(other) if each.path == one.path)
        width = outer.width if subject.build is None else sizes.d_model
        made: nn.Module = kind(_Outer(subject, other, width, outer.ids, outer.layout), found)
        return made, [*(s for s in said if s not in subject.assumptions), f"num_heads={sizes.heads}"]

    inner.build = build
    return inner


# Around it. -----------------------------------------------------------------------------------------------------------


def _inputs(diagnosis: Diagnosis, outer: _Outer, attentions: list[BlockAttention]) -> None:
    """Whether it writes into what it is given."""
    if outer.ids or any(known.id == "inputs-changed" for known, _ in diagnosis.behaviour):
        return
    x = outer.laid(outer.x())
    before = x.clone()
    kept = outer.laid
    outer.laid = lambda tensor: tensor  # type: ignore[method-assign]
    try:
        outer(x)
    finally:
        outer.laid = kept  # type: ignore[method-assign]
    if not torch.equal(x, before):
        _add(diagnosis, "inputs-changed", {"what": outer.inputs[0]})


def _wiring(diagnosis: Diagnosis, outer: _Outer, attentions: list[BlockAttention]) -> None:
    """How every kind of block is wired that an attention stands in."""
    unseeded: list[Tensor] = []
    for _ in range(2):
        unseeded.append(outer(outer.x()))
        outer.seed += 1
    if not torch.equal(*unseeded):
        diagnosis.why.append("two calls with the same input differ, so its residual connections cannot be followed")
        return
    seen = set()
    for path, inside in _blocks(outer.module, attentions):
        block = outer.module.get_submodule(path)
        key = (type(block), re.sub(r"\d+", "", path))
        if key in seen:
            continue
        seen.add(key)
        given = _given(outer, block)
        if given is None:
            diagnosis.why.append(f"{path or diagnosis.subject.name} is never called")
            continue
        found = wired(block, _runner(block, *given, outer.subject.settings), _first(given), inside)
        for known, numbers in found.causes:
            _add(diagnosis, known.id, numbers)
        before = f"{path}: " if path else ""
        diagnosis.notes += [before + says for says in found.says]
        diagnosis.why += [before + why for why in found.why]


def _blocks(module: nn.Module, attentions: list[BlockAttention]) -> Iterator[tuple[str, list[BlockAttention]]]:
    """The innermost blocks, each with its attentions as they are named in it."""
    groups: dict[str, list[BlockAttention]] = {}
    for one in attentions:
        path = one.path
        while path:
            path = path.rpartition(".")[0]
            block = module.get_submodule(path)
            if not isinstance(block, nn.ModuleList | nn.ModuleDict | nn.Sequential) and _has_more(block, [one.leaves]):
                break
        groups.setdefault(path, []).append(one)
    for path, inside in groups.items():
        yield path, [replace(one, path=one.path[len(path) :].lstrip(".")) for one in inside]


def _given(outer: _Outer, block: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What a block is given when the whole is run."""
    kept: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        if not kept:
            kept.append(_copied((args, kwargs)))

    handle = block.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        outer(outer.x())
    finally:
        handle.remove()
    return kept[0] if kept else None


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(each) for each in value)
    return value


def _first(given: tuple[tuple[Any, ...], dict[str, Any]]) -> Tensor:
    return next(tensors_in(given))


def _runner(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], settings: UserSettings
) -> Callable[[bool], Tensor]:
    """Runs a block on what it was given, or on another input."""

    def run(other: bool) -> Tensor:
        mine, named = _copied((args, kwargs))
        x = next(tensors_in((mine, named)))
        if other:
            with torch.no_grad():
                x.copy_(x * -0.7 + 0.4 if x.is_floating_point() else torch.where(x == 0, 1, x - 1))
        torch.manual_seed(0)
        with settings.on():
            result = block(*mine, **named)
        found: Tensor = next(each for each in tensors_in(result) if each.is_floating_point()).detach()
        return found

    return run


# Masks. ---------------------------------------------------------------------------------------------------------------


def _masks(diagnosis: Diagnosis, outer: _Outer, attentions: list[BlockAttention]) -> None:
    """Whether each mask that it takes reaches its attention, and blocks what it says."""
    if not any(one.whole for one in attentions):
        return  # its masks were those of the attention that was judged
    x = outer.x()
    before = outer(x)
    for name in outer.names("mask", "padding", "causal"):
        ran = changed = False
        says = None
        for form, mask, blocked in _written(outer, name):
            try:
                with_it = outer(x, given={name: mask})
            except Exception:
                continue
            ran = True
            changed = changed or not torch.equal(before.nan_to_num(), with_it.nan_to_num())
            if changed and _holds(outer, name, mask, blocked):
                says = form.says
                break
        if says is not None:
            outer.forms[name] = says
            if says and not any(says in each for each in diagnosis.conventions):
                diagnosis.conventions.append(says)
        elif ran and not changed:
            _unread(diagnosis, name, attentions)
        elif (
            ran
            and not diagnosis.behaviour
            and not any(stage.found and stage.found.causes for stage in diagnosis.stages)
        ):
            diagnosis.why.append(f"its {name} has an effect, but no mask format blocks later tokens or padding")
        elif not ran and not (outer.subject.roles()[name] == "causal" and outer.names("mask")):
            # beside a mask, PyTorch's is_causal is a hint that raises by itself
            diagnosis.why.append(f"it could not be called with its {name}")


def _written(outer: _Outer, name: str) -> Iterator[tuple[MaskFormat, Any, str]]:
    """A mask in every form and shape, and what it blocks: the future, the last key of x or of the context."""
    if outer.subject.roles()[name] == "causal":
        yield FORMS[0], True, "future"
        return
    square = causal(TOKENS, TOKENS)[0, 0]
    for form in (each for each in FORMS if each.name != "regard"):
        for shape in ((TOKENS, TOKENS), (BATCH, TOKENS, TOKENS), (BATCH, 1, TOKENS, TOKENS)):
            yield form, form.write(square).expand(shape).clone(), "future"
        for keys, blocked in ((TOKENS, "x"), (CONTEXT, "context")):
            may = torch.ones(BATCH, keys, dtype=torch.bool)
            may[:, -1] = False
            shapes: tuple[tuple[int, ...], ...] = (
                (BATCH, keys),
                (BATCH, 1, keys),
                (BATCH, 1, 1, keys),
                (keys,),
                (TOKENS, keys),
            )
            for size in shapes:
                whole = may[0].expand(size) if size[0] != BATCH else may.reshape(BATCH, *(1,) * (len(size) - 2), keys)
                yield form, form.write(whole).clone(), blocked


def _holds(outer: _Outer, name: str, mask: Any, blocked: str) -> bool:
    """Whether what a mask blocks has no effect."""
    x = outer.x()
    before = outer(x, given={name: mask})
    if blocked == "context":
        if outer.inputs[1] is None:
            return False
        context = outer.x(50, CONTEXT)
        other = outer.moved(context, slice(None), -1)
        return alike(outer(x, other, given={name: mask}), before)
    after = outer(outer.moved(x, slice(None), -1), given={name: mask})
    if before.isnan().any():
        return False
    same = bool((before[:, :-1] - after[:, :-1]).abs().max() <= BLOCKED)
    if blocked == "x":
        return same
    middle = outer(outer.moved(x, slice(None), 2), given={name: mask})
    later = not alike(middle[:, -1], before[:, -1])
    return same and later and bool((before[:, :2] - middle[:, :2]).abs().max() <= BLOCKED)


def _unread(diagnosis: Diagnosis, name: str, attentions: list[BlockAttention]) -> None:
    """A mask without effect: dropped by the attention, as its own stages say, or never handed to it."""
    dropped = any(
        known.id == "mask-dropped"
        for stage in diagnosis.stages
        if stage.found is not None
        for known, _ in stage.found.causes
    )
    if dropped:
        return
    takes = any(
        {"mask", "padding", "causal"} & set(Subject("", module=one.leaves, kind=type(one.leaves)).roles().values())
        for one in attentions
        if one.whole
    )
    if takes:
        _add(diagnosis, "mask-not-passed", {"what": diagnosis.subject.name, "named": name})
    else:
        leak = "Nothing is masked, and no error says so."
        _add(diagnosis, "mask-dropped", {"mask": f"argument {name}", "leak": leak})


def _context(diagnosis: Diagnosis, outer: _Outer, attentions: list[BlockAttention]) -> None:
    """Whether the context has an effect."""
    if outer.inputs[1] is None:
        return
    x = outer.x()
    if torch.equal(outer(x), outer(x, outer.x(77, CONTEXT))):
        _add(diagnosis, "context-ignored", {})


# Time, and the batch. -------------------------------------------------------------------------------------------------


def _leaks(diagnosis: Diagnosis, outer: _Outer, attentions: list[BlockAttention]) -> None:
    """Whether a later token moves an earlier output, in what is causal; and whether one sample moves another."""
    x = outer.x()
    flags = {} if outer.names("mask") else dict.fromkeys(outer.names("causal"), True)
    try:
        before = outer(x, given=flags)
        other = outer(outer.moved(x, 1, slice(None)), given=flags)
    except Exception as error:
        diagnosis.why.append(f"called as a whole, {error_text(error)}")
        return
    mixed = float((before[0] - other[0]).abs().max())
    if mixed > BLOCKED:
        _add(diagnosis, "batch-mixed", {"number": mixed})
    named, sure = _causal(outer, before)
    if not named:
        return
    for key in range(TOKENS - 1, 0, -1):
        after = outer(outer.moved(x, 0, key), given=flags)
        gaps = (before[0, :key] - after[0, :key]).abs().flatten(1).amax(-1)
        if bool((gaps > BLOCKED).any()):
            query = int(gaps.argmax())
            if sure:
                numbers = {"named": named, "number": float(gaps.max()), "query": query, "key": key}
                _add(diagnosis, "future-leak", numbers)
            else:
                diagnosis.why.append(
                    f"{named}; its output at position {query} changes by up to {float(gaps.max()):.2g} with the token "
                    f"at position {key}: right for a masked language model, and a leak in a model that generates"
                )
            return


def _causal(outer: _Outer, output: Tensor) -> tuple[str, bool]:
    """What says that no position sees later ones; and whether it says so for sure."""
    name = outer.subject.name
    flags = outer.names("causal")
    if flags and not outer.names("mask"):
        return f"its flag {flags[0]}", True
    if outer.names("mask"):
        return "", False
    if re.search("bert|encoder|classif|mlm|fill|bidirect", name.lower()) and "decoder" not in name.lower():
        return "", False
    if re.search("decoder|causal|gpt|languagemodel|autoregress|llama|bigram|(?<=[a-z])LM$", name, re.I):
        return f"its name, {name}", True
    for path, buffer in outer.module.named_buffers():
        if triangular(buffer):
            return f"its buffer {path}", True
    vocabularies = {each.num_embeddings for each in outer.module.modules() if isinstance(each, nn.Embedding)}
    if outer.ids and output.shape[-1] in vocabularies:
        return "it makes a score for every token of its vocabulary from ids", False
    return "", False
