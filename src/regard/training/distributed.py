"""One process or many: Lightning Fabric, and what has to be known of all processes at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import InputError, needed
from regard.transformer.block import Block

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

__all__ = ["State", "all_sum", "alone", "engine", "hold", "is_sharded", "put", "taken", "together", "whole"]

STRATEGIES = ("auto", "ddp", "fsdp")
PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")

T = TypeVar("T")

State = dict[str, Tensor]
"""What an optimizer remembers, by the parameter's name and its own word, such as ``model.norm.weight/exp_avg``."""


def engine(
    *,
    devices: int | None = None,
    nodes: int = 1,
    strategy: str = "auto",
    precision: str = "32-true",
    accelerator: str = "auto",
) -> Fabric:
    """The processes of a run, not yet started.

    Under ``torchrun``, ``fabric run`` and SLURM the processes are there already, and their number is theirs to say.

    Args:
        devices: processes on each machine; by default those that a launcher says, or one for each GPU, or one.
        nodes: machines.
        strategy: ``ddp``: every process has all weights (PyTorch's DistributedDataParallel); ``fsdp``: each has its
            share of them (``fully_shard``, FSDP2; Zhao et al. 2023). By default none for one process and ddp for more.
        precision: of the arithmetic: ``32-true``, ``bf16-mixed`` or ``bf16-true``.
        accelerator: ``cpu``, ``cuda``, ... of Fabric; by default the best there is.

    Raises:
        InputError: another strategy or precision; Fabric is missing, or refuses.
    """
    for name, value, known in (("strategy", strategy, STRATEGIES), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise InputError(f"--{name} {value}: it is one of {', '.join(known)}")
    library: Any = needed("lightning_fabric", "train")
    # Fabric tells each process's number when it starts; the progress bar says what matters.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    if "LOCAL_WORLD_SIZE" in os.environ:
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        devices, nodes = devices or local, max(nodes, int(os.environ["WORLD_SIZE"]) // local)
    on_cpu = accelerator == "cpu" or not torch.accelerator.is_available()
    each = devices or (1 if on_cpu else torch.accelerator.device_count())
    chosen: Any = strategy
    if strategy == "fsdp":
        chosen = library.strategies.ModelParallelStrategy(
            _shard, data_parallel_size=each * nodes, tensor_parallel_size=1
        )
    options: dict[str, Any] = {"num_nodes": nodes, "strategy": chosen, "precision": precision}
    try:
        fabric: Fabric = library.Fabric(accelerator=accelerator, devices=each, **options)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(f"these processes cannot be had: {error}") from error
    return fabric


def _shard(learner: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Every block's weights are gathered when it runs, and those outside the blocks for the whole pass."""
    from torch.distributed.fsdp import fully_shard

    among = mesh["data_parallel"]
    for module in learner.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=among)
    fully_shard(learner, mesh=among)
    return learner


def is_sharded(fabric: Fabric) -> bool:
    """Whether each process has a share of the weights only."""
    library: Any = needed("lightning_fabric", "train")
    return isinstance(fabric.strategy, library.strategies.ModelParallelStrategy)


def all_sum(fabric: Fabric, *numbers: float | int) -> list[float]:
    """Numbers of each process, added up over all of them."""
    if fabric.world_size == 1:
        return [float(number) for number in numbers]
    # float32 where a device has no float64; whole numbers below 2**24 are exact in it.
    dtype = torch.float32 if fabric.device.type == "mps" else torch.float64
    summed = fabric.all_reduce(torch.tensor(numbers, dtype=dtype, device=fabric.device), reduce_op="sum")
    assert isinstance(summed, Tensor)
    found: list[float] = summed.tolist()
    return found


def hold(fabric: Fabric, error: InputError | None) -> None:
    """What one process cannot use, none can: the same is raised in all of them, which all have to call this.

    Raises:
        InputError: of this process, or of the first that has one.
    """
    if fabric.world_size == 1:
        if error is not None:
            raise error
        return
    told: list[str | None] = [None] * fabric.world_size
    torch.distributed.all_gather_object(told, None if error is None else str(error))
    first = next((message for message in told if message is not None), None)
    if first is not None:
        raise InputError(first) from error


def together(fabric: Fabric, do: Callable[[], T]) -> T:
    """Do something in every process. If it fails in one, it fails in all.

    Raises:
        InputError: where it cannot be done; a disk that refuses is one.
    """
    error, done = None, None
    try:
        done = do()
    except InputError as raised:
        error = raised
    except OSError as raised:
        error = InputError(f"{raised.filename or 'a file'}: {raised.strerror or raised}")
    hold(fabric, error)
    return done  # type: ignore[return-value]


def alone(fabric: Fabric, do: Callable[[], None]) -> None:
    """Do something in the process of rank 0, while the others wait. If it fails there, it fails in all.

    Raises:
        InputError: as `together`.
    """
    together(fabric, do if fabric.is_global_zero else lambda: None)


def whole(tensor: Tensor) -> Tensor:
    """A parameter, or what is remembered of one, from all processes that have shares of it, on the CPU.

    With shares, every process has to ask.
    """
    gathered = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.detach().cpu()


def taken(learner: nn.Module, optimizer: Optimizer) -> State:
    """What an optimizer remembers. With shares, every process has to ask."""
    return {
        f"{name}/{word}": whole(value).contiguous().clone()
        for name, parameter in learner.named_parameters()
        for word, value in optimizer.state.get(parameter, {}).items()
    }


def put(state: Mapping[str, Tensor], learner: nn.Module, optimizer: Optimizer) -> None:
    """The opposite of `taken`."""
    parameters = dict(learner.named_parameters())
    for key, value in state.items():
        name, _, word = key.rpartition("/")
        parameter = parameters[name]
        if word != "step":
            held = _as(value, parameter)
        else:  # one number, on the CPU but for the fused optimizer
            held = value.to(parameter.device) if optimizer.defaults["fused"] else value
        optimizer.state.setdefault(parameter, {})[word] = held


def _as(value: Tensor, parameter: Tensor) -> Tensor:
    """A tensor shared among processes as a parameter is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    value = value.to(parameter.device)
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)
