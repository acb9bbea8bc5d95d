"""Lightning Fabric for one process or many, and operations over all processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import InputError, import_optional
from regard.training.defaults import PRECISIONS, STRATEGIES
from regard.transformer.block import Block

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

T = TypeVar("T")

OptimizerState = dict[str, Tensor]
"""Tensors by the parameter's name and the optimizer's key, such as ``model.norm.weight/exp_avg``."""


def create_fabric(
    *,
    devices: int | None = None,
    nodes: int = 1,
    strategy: str = "auto",
    precision: str = "32-true",
    accelerator: str = "auto",
) -> Fabric:
    """The processes of a run, not yet started.

    ``torchrun``, ``fabric run`` and SLURM start the processes themselves, and their number overrides the arguments.

    Args:
        devices: processes on each machine; by default the number of the launcher, or one for each GPU, or one.
        nodes: machines.
        strategy: ``ddp``: every process has all weights (PyTorch's DistributedDataParallel); ``fsdp``: each has its
            share of them (``fully_shard``, FSDP2; Zhao et al. 2023). By default none for one process and ddp for more.
        precision: of the arithmetic: ``32-true``, ``bf16-mixed`` or ``bf16-true``.
        accelerator: ``cpu``, ``cuda``, ... of Fabric; by default the best of this machine.

    Raises:
        InputError: an unknown strategy or precision; Fabric is missing, or refuses.
    """
    for name, value, choices in (("strategy", strategy, STRATEGIES), ("precision", precision, PRECISIONS)):
        if value not in choices:
            raise InputError(f"{name}={value}: it is one of {', '.join(choices)}")
    library: Any = import_optional("lightning_fabric", "train")
    # Fabric prints the rank of each process when it starts; the progress bar shows what matters.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    if "LOCAL_WORLD_SIZE" in os.environ:
        local_size = int(os.environ["LOCAL_WORLD_SIZE"])
        devices, nodes = devices or local_size, max(nodes, int(os.environ["WORLD_SIZE"]) // local_size)
    on_cpu = accelerator == "cpu" or not torch.accelerator.is_available()
    num_devices = devices or (1 if on_cpu else torch.accelerator.device_count())
    fabric_strategy: Any = strategy
    if strategy == "fsdp":
        fabric_strategy = library.strategies.ModelParallelStrategy(
            _shard, data_parallel_size=num_devices * nodes, tensor_parallel_size=1
        )
    options: dict[str, Any] = {"num_nodes": nodes, "strategy": fabric_strategy, "precision": precision}
    try:
        fabric: Fabric = library.Fabric(accelerator=accelerator, devices=num_devices, **options)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(f"these processes are not available: {error}") from error
    return fabric


def _shard(loss_module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The weights of a block are gathered when it runs, and those outside the blocks for the whole pass."""
    from torch.distributed.fsdp import fully_shard

    data_parallel = mesh["data_parallel"]
    for module in loss_module.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=data_parallel)
    fully_shard(loss_module, mesh=data_parallel)
    return loss_module


def is_rank_zero() -> bool:
    """Whether this is the process of rank 0, also after `regard.train` has raised an error."""
    library: Any = import_optional("lightning_fabric.utilities.rank_zero", "train")
    return int(library.rank_zero_only.rank) == 0


def is_sharded(fabric: Fabric) -> bool:
    """Whether each process has only a share of the weights."""
    library: Any = import_optional("lightning_fabric", "train")
    return isinstance(fabric.strategy, library.strategies.ModelParallelStrategy)


def reshard(loss_module: nn.Module) -> None:
    """Free the weights that a pass without gradients has gathered from all processes.

    While they are gathered, the parameters of the module are others than those of its optimizer.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in loss_module.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def all_sum(fabric: Fabric, *numbers: float | int) -> list[float]:
    """The sum of each number over all processes."""
    if fabric.world_size == 1:
        return [float(number) for number in numbers]
    # float32 where a device has no float64; integers below 2**24 are exact in it.
    dtype = torch.float32 if fabric.device.type == "mps" else torch.float64
    summed = fabric.all_reduce(torch.tensor(numbers, dtype=dtype, device=fabric.device), reduce_op="sum")
    assert isinstance(summed, Tensor)
    sums: list[float] = summed.tolist()
    return sums


def raise_on_all_ranks(fabric: Fabric, error: InputError | None) -> None:
    """Raise an error of any process in all processes. Every process has to call this.

    Raises:
        InputError: of this process, or of the first that has one.
    """
    if fabric.world_size == 1:
        if error is not None:
            raise error
        return
    messages: list[str | None] = [None] * fabric.world_size
    torch.distributed.all_gather_object(messages, None if error is None else str(error))
    first = next((message for message in messages if message is not None), None)
    if first is not None:
        raise InputError(first) from error


def all_ranks(fabric: Fabric, function: Callable[[], T]) -> T:
    """Call a function in every process. If it fails in one, it fails in all.

    Raises:
        InputError: the function raised it, or an OSError.
    """
    error, result = None, None
    try:
        result = function()
    except InputError as raised:
        error = raised
    except OSError as raised:
        error = InputError(f"{raised.filename or 'a file'}: {raised.strerror or raised}")
    raise_on_all_ranks(fabric, error)
    return result  # type: ignore[return-value]


def rank_zero(fabric: Fabric, function: Callable[[], None]) -> None:
    """Call a function in the process of rank 0, while the others wait. If it fails there, it fails in all.

    Raises:
        InputError: as `all_ranks`.
    """
    all_ranks(fabric, function if fabric.is_global_zero else lambda: None)


def full_tensor(tensor: Tensor) -> Tensor:
    """A parameter or an optimizer's tensor on the CPU, gathered from all processes that have shares of it.

    With shares, every process has to call this.
    """
    gathered = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.detach().cpu()


def optimizer_state(loss_module: nn.Module, optimizer: Optimizer) -> OptimizerState:
    """The state of an optimizer. With shares, every process has to call this."""
    return {
        f"{name}/{key}": full_tensor(value).contiguous().clone()
        for name, parameter in loss_module.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_state(state: Mapping[str, Tensor], loss_module: nn.Module, optimizer: Optimizer) -> None:
    """The opposite of `optimizer_state`."""
    parameters = dict(loss_module.named_parameters())
    for path, value in state.items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        if key != "step":
            value = _sharded_like(value, parameter)
        elif optimizer.defaults["fused"]:  # one number, on the CPU unless the optimizer is fused
            value = value.to(parameter.device)
        optimizer.state.setdefault(parameter, {})[key] = value


def _sharded_like(value: Tensor, parameter: Tensor) -> Tensor:
    """A tensor distributed over the processes as a parameter is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    value = value.to(parameter.device)
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)
