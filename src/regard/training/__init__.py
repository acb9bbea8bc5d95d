"""Training a transformer on Lightning Fabric.

- `train`: the entry: a task, data and a directory in; a trained model out
- `defaults`: the defaults of each task
- `config`: the configuration of a run
- `trainer`: the training loop
- `dataloader`: the batches of a run, over all processes
- `shuffling`: the order of the examples
- `loss`: the cross-entropy, computed together with the logits
- `linear`: the products of an update by oneDNN
- `loss_module`: a model with its loss as one module; its optimizer
- `distributed`: one process or many
- `checkpoint`: checkpoints on disk
- `run_dir`: the directory of a run: its configuration, metrics and plots
- `callbacks`: what a run calls, and its result
- `console`: the progress bar; signals
- `tokenizers`: byte-level BPE
- `data`: rows of files, or built-in data
- `tasks`: one file for each kind of training
"""
