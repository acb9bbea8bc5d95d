"""The loss that is computed together with its logits, against PyTorch's cross-entropy; the optimizer."""

import pytest
import torch
import torch.nn.functional as F
from runs import build_task, write

from grids import grid
from regard.training.data import texts
from regard.training.distributed import load_optimizer_state, optimizer_state
from regard.training.loss import IGNORE_INDEX, LinearLogits, decoder_logits, linear_cross_entropy
from regard.training.loss_module import LossModule, build_optimizer
from regard.transformer import Config, Decoder

PREDICTED, VOCABULARY, WIDTH = 23, 101, 16
ROWS_IN_MEMORY = {"one": VOCABULARY, "some": 5 * VOCABULARY, "all": None}


def random_logits(dtype=torch.float32, *, bias=False, vocabulary=VOCABULARY):
    parts = [(PREDICTED, WIDTH), (vocabulary, WIDTH), *([(vocabulary,)] if bias else [])]
    targets = torch.randint(vocabulary, (PREDICTED,))
    targets[[0, 7, 22]] = IGNORE_INDEX
    return LinearLogits(*(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in parts)), targets


def reference_loss(logits, targets, label_smoothing=0.0):
    """PyTorch's cross-entropy."""
    return F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing)


def gradients(loss, logits):
    return torch.autograd.grad(loss, [part for part in logits if part is not None])


def assert_same(found, wanted, *, relative):
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() <= relative * other.abs().max()


class TestLinearCrossEntropy:
    @grid(
        rows=ROWS_IN_MEMORY,
        dtype=[torch.float64, torch.float32],
        label_smoothing=[0.0, 0.1],
        bias=[False, True],
        scale=[1.0, 0.25],
        outer_scale=[1.0, 3.0],
    )
    def test_loss_and_gradients_equal_pytorchs(self, rows, dtype, label_smoothing, bias, scale, outer_scale):
        logits, targets = random_logits(dtype, bias=bias)
        found = linear_cross_entropy(logits, targets, label_smoothing, scale, max_chunk_logits=ROWS_IN_MEMORY[rows])
        found *= outer_scale
        wanted = reference_loss(F.linear(*logits), targets, label_smoothing) * scale * outer_scale
        found_all, wanted_all = ([loss.detach(), *gradients(loss, logits)] for loss in (found, wanted))
        assert {tensor.dtype for tensor in found_all} == {dtype}
        assert_same(found_all, wanted_all, relative=1e-14 if dtype == torch.float64 else 1e-6)

    @pytest.mark.parametrize("rows", ROWS_IN_MEMORY)
    def test_half_precision_is_summed_in_float32(self, rows):
        logits, targets = random_logits(torch.bfloat16, bias=True)
        found = linear_cross_entropy(logits, targets, max_chunk_logits=ROWS_IN_MEMORY[rows])
        wide = LinearLogits(*(part.detach().float().requires_grad_() for part in logits))
        exact = reference_loss(F.linear(*wide), targets)
        assert found.dtype == torch.float32
        assert_same([found], [exact], relative=1e-3)
        found_gradients = gradients(found, logits)
        assert {gradient.dtype for gradient in found_gradients} == {torch.bfloat16}
        assert_same(found_gradients, gradients(exact, wide), relative=2e-2)

    @grid(rows=ROWS_IN_MEMORY, dtype=[torch.float32, torch.float64])
    def test_autocast_multiplies_in_half_precision_but_for_float64(self, rows, dtype):
        logits, targets = random_logits(dtype, bias=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = linear_cross_entropy(logits, targets, max_chunk_logits=ROWS_IN_MEMORY[rows])
            wanted = reference_loss(F.linear(*logits).to(dtype), targets)
        assert found.dtype == dtype
        assert_same([found], [wanted], relative=1e-14 if dtype == torch.float64 else 1e-6)
        assert_same(gradients(found, logits), gradients(wanted, logits), relative=2e-2)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_logits_may_be_a_tensor(self, dtype):
        tensor, targets = torch.randn(PREDICTED, VOCABULARY).to(dtype), torch.randint(VOCABULARY, (PREDICTED,))
        targets[3] = IGNORE_INDEX
        found = linear_cross_entropy(tensor, targets, 0.1, 0.25)
        assert found.dtype == torch.float32
        assert_same([found], [reference_loss(tensor.float(), targets, 0.1) * 0.25], relative=1e-6)

    @pytest.mark.parametrize("trained", [0, 1])
    def test_only_trained_tensors_have_a_gradient(self, trained):
        logits, targets = random_logits()
        parts = [part.detach().requires_grad_(i == trained) for i, part in enumerate(logits[:2])]
        linear_cross_entropy(LinearLogits(*parts), targets).backward()
        wanted = gradients(reference_loss(F.linear(*logits), targets), logits)
        assert parts[1 - trained].grad is None
        assert_same([parts[trained].grad], [wanted[trained]], relative=1e-6)

    def test_a_target_with_a_probability_of_almost_0(self):
        """Its probability is no float32, its logarithm is -200."""
        weight = torch.tensor([[100.0], [-100.0]], requires_grad=True)
        logits = LinearLogits(torch.ones(2, 1, requires_grad=True), weight)
        loss = linear_cross_entropy(logits, torch.tensor([1, 0]))
        assert float(loss.detach()) == 200.0
        wanted = [torch.tensor([[200.0], [0.0]]), torch.tensor([[1.0], [-1.0]])]
        assert_same(gradients(loss, logits), wanted, relative=1e-6)

    @pytest.mark.parametrize("worst", [torch.nan, torch.inf])
    def test_not_finite_inputs_give_nan(self, worst):
        logits, targets = random_logits()
        with torch.no_grad():
            logits.hidden_states[3, 0] = worst
        loss = linear_cross_entropy(logits, targets)
        assert loss.isnan()
        assert gradients(loss, logits)[1].isnan().any()

    def test_nothing_to_predict(self):
        logits, targets = random_logits(bias=True)
        loss = linear_cross_entropy(logits, torch.full_like(targets, IGNORE_INDEX))
        assert float(loss.detach()) == 0.0
        assert all(not gradient.any() for gradient in gradients(loss, logits))

    def test_without_gradients_none_are_computed(self):
        logits, targets = random_logits(bias=True)
        with torch.no_grad():
            loss = linear_cross_entropy(logits, targets)
        assert not loss.requires_grad
        assert_same([loss], [reference_loss(F.linear(*logits), targets)], relative=1e-6)

    def test_no_second_derivative(self):
        logits, targets = random_logits()
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(linear_cross_entropy(logits, targets), [logits.hidden_states], create_graph=True)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_vocabularies_of_any_size(self, dtype):
        """PyTorch does not promise that a softmax may write over its logits: rows also with a rest of its vectors."""
        for vocabulary in (*range(1, 70), 1000, 50_257):
            logits, targets = random_logits(dtype, vocabulary=vocabulary)
            found, wanted = linear_cross_entropy(logits, targets), reference_loss(F.linear(*logits), targets)
            torch.testing.assert_close(gradients(found, logits), gradients(wanted, logits))

    @pytest.mark.parametrize(
        "choices",
        [
            {},
            {"tie_word_embeddings": False, "logit_scale": 0.5},
            {"logit_softcap": 2.0, "lm_head_bias": True, "tie_word_embeddings": False},
        ],
    )
    def test_decoder_logits(self, choices):
        config = Config(vocab_size=41, d_model=WIDTH, num_layers=1, num_heads=2, d_ff=16, max_positions=8, **choices)
        decoder = Decoder(config)
        if decoder.lm_head_bias is not None:
            torch.nn.init.normal_(decoder.lm_head_bias)
        hidden_states, targets = torch.randn(5, WIDTH, requires_grad=True), torch.randint(41, (5,))
        parameters = [hidden_states, *(weight for name, weight in decoder.named_parameters() if "block" not in name)]
        found, wanted = (
            [loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)]
            for loss in (
                linear_cross_entropy(decoder_logits(decoder, hidden_states), targets),
                reference_loss(decoder.logits(hidden_states), targets),
            )
        )
        assert_same(found, wanted, relative=1e-6)


class TestOptimizer:
    def test_its_state_is_saved_and_loaded(self, tmp_path):
        """The same weights and the same state give the same next weights, bit for bit."""
        task, data = build_task("lm"), texts([write("lm", tmp_path)])
        pretrained = task.init_model(tmp_path / "model", data)
        batch = task.batch([example for row in data.eval_rows for example in task.encode_eval(row, pretrained)])
        loss_module = LossModule(pretrained.model, task)

        def update(optimizer):
            loss_module(batch.tensors, 1 / batch.num_predicted).backward()
            optimizer.step()
            optimizer.zero_grad()
            return {name: parameter.detach().clone() for name, parameter in loss_module.named_parameters()}

        first, second = (build_optimizer(loss_module, learning_rate=1e-2, weight_decay=0.1) for _ in range(2))
        before = [update(first) for _ in range(3)][-1]
        state = optimizer_state(loss_module, first)
        wanted = update(first)
        loss_module.load_state_dict(before)
        load_optimizer_state(state, loss_module, second)
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in update(second).items())

    def test_it_is_adamw_fused(self):
        model, reference = torch.nn.Linear(33, 65), torch.nn.Linear(33, 65)
        reference.load_state_dict(model.state_dict())
        groups = [{"params": [p], "weight_decay": 0.1 if p.ndim == 2 else 0.0} for p in reference.parameters()]
        optimizer = build_optimizer(model, learning_rate=1e-2, weight_decay=0.1)
        assert optimizer.defaults["fused"]
        for stepped, by in ((model, optimizer), (reference, torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.98)))):
            torch.manual_seed(0)
            for _ in range(5):
                stepped(torch.randn(7, 33)).square().sum().backward()
                by.step()
                by.zero_grad()
        torch.testing.assert_close(model.state_dict(), reference.state_dict(), rtol=1e-5, atol=1e-6)
