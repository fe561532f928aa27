"""Updates during the backward pass of the library's modules: gradients of spectral weights go to the optimizer as
factors and are never formed, unless somebody asks for them."""
import pytest

torch = pytest.importorskip("torch")

import libtgrad  # noqa: E402
from libtgrad import _factored  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

from nn_cases import difference, make  # noqa: E402
from torch_cases import tensorgrad  # noqa: E402

SPECTRAL = "fno_blocks.convs.0.weight.tensor"


@pytest.fixture
def formed(monkeypatch):
    """How many were."""
    calls, dense = [], _factored.Factored.dense
    monkeypatch.setattr(_factored.Factored, "dense", lambda self: calls.append(self) or dense(self))
    return calls


def network(**arguments):
    torch.manual_seed(0)
    return make((8, 6), 2, 3, 16, **arguments)


def optimizer(model, in_backward=True, **keys):
    return tensorgrad(libtgrad.param_groups(model, min_entries=500), update_proj_gap=3, in_backward=in_backward, **keys)


def batches(count=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, 2, 16, 12, generator=generator) for _ in range(count)]


def weights(model):
    return torch.cat([torch.view_as_real(p).flatten() if p.is_complex() else p.flatten()
                      for p in model.parameters()]).detach()


def trained(model, opt, loss_of=lambda model, x: model(x).square().mean(), steps=6):
    for x in batches(steps):
        opt.zero_grad()
        loss_of(model, x).backward()
        opt.step()
    return weights(model)


@pytest.mark.parametrize("arguments", [
    {}, {"activation_checkpoint": "block"}, {"saved_precision": "8bit"}, {"fno_block_precision": "mixed"},
    {"norm": "group_norm", "channel_mlp_dropout": 0.2}, {"factorization": "tucker", "rank": 0.5}, {"separable": True}])
def test_updates_are_those_after_the_pass(formed, arguments):
    ends = []
    for in_backward in (False, True):
        model = network(**arguments)
        opt = optimizer(model, in_backward)
        begin = weights(model)
        ends.append(trained(model, opt) - begin)
        assert opt.stats()["steps"] == 6 * len(list(model.parameters()))
    bound = 0.02 if arguments.get("fno_block_precision") == "mixed" else 1e-3
    assert difference(ends[1], ends[0]) < bound and not formed


def test_accumulation_clipping_and_a_scaler(formed):
    ends = []
    for in_backward in (False, True):
        model = network()
        keys = {"in_backward": True, "max_grad_norm": 1e6} if in_backward else {"in_backward": False}
        opt = optimizer(model, **keys)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=in_backward)  # torch's knows no complex ones
        begin, data = weights(model), batches(8)
        for first in range(0, 8, 2):
            opt.zero_grad()
            for x in data[first:first + 2]:
                scaler.scale(model(x).square().mean()).backward()
            scaler.step(opt)
            scaler.update()
        ends.append(weights(model) - begin)
    assert difference(ends[1], ends[0]) < 1e-3 and not formed


def penalty(model, x):
    return model(x).square().mean() + 0.1 * model.get_parameter(SPECTRAL).abs().square().sum()


def twice(model, x):
    return model(x).square().mean() + model(0.5 * x).square().mean()


@pytest.mark.parametrize("loss_of", [penalty, twice])
def test_several_gradients_of_a_weight_make_one_update(formed, loss_of):
    ends = []
    for in_backward in (False, True):
        model = network()
        opt = optimizer(model, in_backward)
        begin = weights(model)
        ends.append(trained(model, opt, loss_of) - begin)
        assert opt.stats()["steps"] == 6 * len(list(model.parameters()))
    assert formed and difference(ends[1], ends[0]) < 1e-3


def test_checkpoint_and_blocks_in_a_network(formed):
    from torch.utils.checkpoint import checkpoint
    ends = []
    for in_backward in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(2, 16, 1), libtgrad.nn.SpectralBlock(16, 16, (8, 6)),
                                    torch.nn.GELU(), libtgrad.nn.SpectralBlock(16, 16, (8, 6)))
        opt, begin = optimizer(model, in_backward), weights(model)
        ends.append(trained(model, opt, lambda model, x: checkpoint(model, x, use_reentrant=False).square().mean())
                    - begin)
    assert difference(ends[1], ends[0]) < 1e-3 and not formed


def test_compiled_networks_form_them():
    ends = []
    for compiles in (False, True):
        torch._dynamo.reset()
        model = network()
        opt, begin = optimizer(model), weights(model)
        run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiles else model
        ends.append(trained(model, opt, lambda _, x: run(x).square().mean(), steps=2) - begin)
    assert difference(ends[1], ends[0]) < 1e-3


def test_gradients_that_are_asked_for_are_formed(formed):
    model, x = network(), batches(1)[0]
    weight, before = model.get_parameter(SPECTRAL), weights(model)
    expected, = torch.autograd.grad(model(x).square().mean(), weight)
    opt = optimizer(model)
    found, = torch.autograd.grad(model(x).square().mean(), weight)
    assert difference(found + 0, expected) < 1e-6 and formed
    assert torch.equal(weights(model), before)  # no update was made
    seen = []
    weight.register_hook(lambda gradient: seen.append(gradient.abs().sum()))
    model(x).square().mean().backward()
    assert abs(seen[0] / expected.abs().sum() - 1) < 1e-5
    assert opt.stats()["steps"] == len(list(model.parameters()))


def test_a_graph_that_is_kept(formed):
    model = network()
    opt, y = optimizer(model), model(batches(1)[0]).square().mean()
    y.backward(retain_graph=True)  # its memory is needed again, so gradients are formed
    assert opt.stats()["steps"] == len(list(model.parameters()))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def peak_of(function, monkeypatch):
    """Bytes of the tensors that a call makes, at their peak."""
    alive, sizes = [], []

    def counted(make):
        def made(*arguments, **keys):
            tensor = make(*arguments, **keys)
            alive.append((StorageWeakRef(tensor.untyped_storage()), tensor.untyped_storage().nbytes()))
            alive[:] = [(reference, size) for reference, size in alive if not reference.expired()]
            sizes.append(sum(size for _, size in alive))
            return tensor
        return made

    with monkeypatch.context() as patch:
        for name in ("empty", "empty_like"):
            patch.setattr(torch, name, counted(getattr(torch, name)))
        function()
    return max(sizes)


def test_peak_is_that_of_tgrad_plan(monkeypatch):
    modes, width, batch, size = (16, 16), 32, 4, 64
    torch.manual_seed(0)
    model = make(modes, 1, 1, width, 4)
    opt = tensorgrad(libtgrad.param_groups(model, min_entries=20000), in_backward=True, update_proj_gap=100)
    x = torch.randn(batch, 1, size, size)

    def step():
        model(x).square().mean().backward()
        opt.step()

    held = sum(p.numel() * p.element_size() for p in model.parameters()) + opt.memory()["state"]
    peaks = [held + peak_of(step, monkeypatch) for _ in range(3)]
    plan = libtgrad.plan({
        "fno": {"n_modes": list(modes), "hidden_channels": width, "n_layers": 4},
        "opt": {"name": "tensorgrad", "sparse_ratio": 0.2, "second_rank": 0.05},
        "data": {"set": "none", "train_resolution": size, "batch_size": batch}}, threads=1)
    assert all(0.9 < peak / plan.phases["training step"] < 1.05 for peak in peaks)
