"""The loss that is computed together with its logits, against PyTorch's cross-entropy."""

import pytest
import torch
import torch.nn.functional as F
from runs import TINY, write

from regard.training import loss as loss_file
from regard.training.distributed import load_optimizer_state, optimizer_state
from regard.training.loss import IGNORE_INDEX, LinearLogits, decoder_logits, linear_cross_entropy
from regard.training.loss_module import LossModule, build_optimizer
from regard.training.tasks import TASKS
from regard.training.train import build_config
from regard.transformer import Config, Decoder

PREDICTED, VOCABULARY, WIDTH = 23, 101, 16
ONE_ROW, SOME_ROWS, ALL_ROWS = VOCABULARY, 5 * VOCABULARY, 2**24


@pytest.fixture(params=[ONE_ROW, SOME_ROWS, ALL_ROWS])
def chunk_logits(request, monkeypatch):
    """The number of logits in memory at once."""
    monkeypatch.setattr(loss_file, "MAX_CHUNK_LOGITS", (request.param, request.param))


def random_logits(dtype=torch.float32, *, bias=False):
    hidden_states = torch.randn(PREDICTED, WIDTH, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype, requires_grad=True)
    added = torch.randn(VOCABULARY, dtype=dtype, requires_grad=True) if bias else None
    targets = torch.randint(VOCABULARY, (PREDICTED,))
    targets[[0, 7, 22]] = IGNORE_INDEX
    return LinearLogits(hidden_states, weight, added), targets


def reference_loss(logits, targets, label_smoothing=0.0):
    """PyTorch's cross-entropy."""
    return F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing)


def gradients(loss, logits):
    return torch.autograd.grad(loss, [part for part in logits if part is not None])


def assert_same(ours, theirs, *, relative):
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).abs().max() <= relative * other.abs().max()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
@pytest.mark.usefixtures("chunk_logits")
def test_loss_and_gradients_equal_pytorchs(dtype, relative, label_smoothing, bias):
    logits, targets = random_logits(dtype, bias=bias)
    ours = linear_cross_entropy(logits, targets, label_smoothing)
    theirs = reference_loss(F.linear(*logits), targets, label_smoothing)
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=relative)
    assert_same(gradients(ours, logits), gradients(theirs, logits), relative=relative)


@pytest.mark.usefixtures("chunk_logits")
def test_half_precision_is_summed_in_float32():
    logits, targets = random_logits(torch.bfloat16, bias=True)
    ours = linear_cross_entropy(logits, targets)
    wide = LinearLogits(*(part.detach().float().requires_grad_() for part in logits))
    exact = reference_loss(F.linear(*wide), targets)
    assert ours.dtype == torch.float32
    assert float(ours.detach()) == pytest.approx(float(exact.detach()), rel=1e-3)
    for one, other in zip(gradients(ours, logits), gradients(exact, wide), strict=True):
        assert one.dtype == torch.bfloat16
        assert (one - other).abs().max() <= 2e-2 * other.abs().max()


@pytest.mark.usefixtures("chunk_logits")
def test_autocast_multiplies_in_half_precision():
    logits, targets = random_logits(bias=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_cross_entropy(logits, targets)
        theirs = reference_loss(F.linear(*logits).float(), targets)
    assert ours.dtype == torch.float32
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-6)
    assert_same(gradients(ours, logits), gradients(theirs, logits), relative=2e-2)


def test_autocast_does_not_change_float64():
    logits, targets = random_logits(torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_cross_entropy(logits, targets)
    assert float(ours.detach()) == pytest.approx(float(reference_loss(F.linear(*logits), targets).detach()), rel=1e-14)


@pytest.mark.parametrize("outer", [1.0, 3.0])
def test_a_scale_inside_and_outside(outer):
    logits, targets = random_logits(bias=True)
    ours = linear_cross_entropy(logits, targets, 0.1, 0.25) * outer
    theirs = reference_loss(F.linear(*logits), targets, 0.1) * (0.25 * outer)
    assert_same([ours.detach()], [theirs.detach()], relative=1e-6)
    assert_same(gradients(ours, logits), gradients(theirs, logits), relative=1e-6)


@pytest.mark.parametrize("is_trained", [(True, False), (False, True)])
def test_only_trained_tensors_have_a_gradient(is_trained):
    logits, targets = random_logits()
    parts = [part.detach().requires_grad_(learned) for part, learned in zip(logits[:2], is_trained, strict=True)]
    linear_cross_entropy(LinearLogits(*parts), targets).backward()
    reference_loss(F.linear(*logits), targets, 0.0).backward()
    for part, whole, learned in zip(parts, logits[:2], is_trained, strict=True):
        assert (part.grad is not None) == learned
        if learned:
            assert_same([part.grad], [whole.grad], relative=1e-6)


def test_a_target_with_a_probability_of_almost_0():
    """Its probability is no float32, its logarithm is -200."""
    weight = torch.tensor([[100.0], [-100.0]], requires_grad=True)
    logits = LinearLogits(torch.ones(2, 1, requires_grad=True), weight)
    loss = linear_cross_entropy(logits, torch.tensor([1, 0]))
    assert float(loss.detach()) == 200.0
    assert_same(gradients(loss, logits), [torch.tensor([[200.0], [0.0]]), torch.tensor([[1.0], [-1.0]])], relative=1e-6)


@pytest.mark.parametrize("worst", [torch.nan, torch.inf])
def test_not_finite_inputs_give_nan(worst):
    logits, targets = random_logits()
    with torch.no_grad():
        logits.hidden_states[3, 0] = worst
    loss = linear_cross_entropy(logits, targets)
    assert loss.isnan()
    assert gradients(loss, logits)[1].isnan().any()


def test_nothing_to_predict():
    logits, targets = random_logits(bias=True)
    loss = linear_cross_entropy(logits, torch.full_like(targets, IGNORE_INDEX))
    assert float(loss.detach()) == 0.0
    assert all(not gradient.any() for gradient in gradients(loss, logits))


def test_without_gradients_none_are_computed():
    logits, targets = random_logits()
    with torch.no_grad():
        loss = linear_cross_entropy(logits, targets)
    assert not loss.requires_grad
    assert float(loss) == pytest.approx(float(reference_loss(F.linear(*logits), targets).detach()), rel=1e-6)


def test_no_second_derivative():
    logits, targets = random_logits()
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(linear_cross_entropy(logits, targets), [logits.hidden_states], create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_softmax_may_write_over_its_logits(dtype):
    """PyTorch does not promise it, and `_softmax` relies on it: rows of any length, also with a rest of its vectors."""
    for length in (*range(1, 70), 1000, 50_257):
        logits = torch.randn(3, length, dtype=dtype) * 10
        wanted = torch.softmax(logits, -1)
        assert torch.equal(loss_file._softmax(logits), wanted)


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"tie_word_embeddings": False},
        {"lm_head_bias": True},
        {"logit_scale": 0.5},
        {"logit_softcap": 2.0},
        {"logit_softcap": 2.0, "lm_head_bias": True, "tie_word_embeddings": False},
    ],
)
def test_decoder_logits(choices):
    config = Config(vocab_size=41, d_model=WIDTH, num_layers=1, num_heads=2, d_ff=16, max_positions=8, **choices)
    decoder = Decoder(config)
    if decoder.lm_head_bias is not None:
        torch.nn.init.normal_(decoder.lm_head_bias)
    hidden_states, targets = torch.randn(5, WIDTH, requires_grad=True), torch.randint(41, (5,))
    parameters = [hidden_states, *(parameter for name, parameter in decoder.named_parameters() if "block" not in name)]
    found = []
    for loss in (
        linear_cross_entropy(decoder_logits(decoder, hidden_states), targets),
        reference_loss(decoder.logits(hidden_states), targets),
    ):
        found.append([loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)])
    assert_same(*found, relative=1e-6)


def test_the_optimizer_state_is_saved_and_loaded(tmp_path):
    """The state, saved and loaded, gives the same weights bit for bit."""
    task = TASKS["lm"](build_config(TASKS["lm"], TINY))
    data = task.load_data([write("lm", tmp_path)], None)
    pretrained = task.init_model(tmp_path / "model", data)
    batch = task.batch([example for row in data.eval_rows for example in task.encode_eval(row, pretrained)])

    def update(loss_module, optimizer):
        loss_module(batch.tensors, 1 / batch.num_predicted).backward()
        optimizer.step()
        optimizer.zero_grad()

    loss_module = LossModule(pretrained.model, task)
    optimizer = build_optimizer(loss_module, learning_rate=1e-2, weight_decay=0.1)
    for _ in range(3):
        update(loss_module, optimizer)
    saved = {name: parameter.detach().clone() for name, parameter in loss_module.named_parameters()}
    state = optimizer_state(loss_module, optimizer)
    update(loss_module, optimizer)
    wanted = {name: parameter.detach().clone() for name, parameter in loss_module.named_parameters()}
    with torch.no_grad():
        for name, parameter in loss_module.named_parameters():
            parameter.copy_(saved[name])
    again = build_optimizer(loss_module, learning_rate=1e-2, weight_decay=0.1)
    load_optimizer_state(state, loss_module, again)
    update(loss_module, again)
    for name, parameter in loss_module.named_parameters():
        assert torch.equal(parameter, wanted[name])


def test_the_fused_optimizer_is_adamw():
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(33, 65), torch.nn.Linear(33, 65)
    theirs.load_state_dict(ours.state_dict())
    optimizers = [
        build_optimizer(ours, learning_rate=1e-2, weight_decay=0.1),
        torch.optim.AdamW(
            [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias], "weight_decay": 0.0}],
            lr=1e-2,
            betas=(0.9, 0.98),
        ),
    ]
    assert optimizers[0].defaults["fused"]
    for _ in range(5):
        x = torch.randn(7, 33)
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.bias, theirs.bias, rtol=1e-5, atol=1e-6)
