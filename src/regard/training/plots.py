"""What a run draws into its folder: how the loss falls, and the attention of one held-out example."""

from __future__ import annotations

from regard.errors import needed
from regard.lens import Recording
from regard.training.run_dir import Folder

__all__ = ["draw"]

LOSS, ATTENTION = "loss.png", "attention"


def draw(folder: Folder, recording: Recording, step: int) -> None:
    """Draw the loss so far, and keep the attention as it is now.

    Args:
        folder: of the run.
        recording: of one held-out example, the same each time; of an encoder-decoder the cross-attention is drawn.
        step: how many updates were done.
    """
    needed("matplotlib", "train")
    from regard.views.figures.losses import plot_losses
    from regard.views.figures.maps import plot_heads

    plot_losses(list(folder.metrics())).savefig(folder.path / LOSS)
    beside = folder.path / ATTENTION
    beside.mkdir(exist_ok=True)
    recording.save(beside / f"step-{step:06d}.safetensors")
    crosses = any(recording.entry(path).kind == "cross" for path in recording)
    plot_heads(recording, "cross" if crosses else None).savefig(beside / f"step-{step:06d}.png")
