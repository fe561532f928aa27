"""Arguments, groups and states of the optimizers of the package neuraloperator."""
import copy
import io
import math
import types

import pytest

torch = pytest.importorskip("torch")

import libtgrad  # noqa: E402

AdamW = pytest.importorskip("neuralop.training.adamw").AdamW


def make(seed=0):
    """(spectral weights, the others)"""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, dtype=torch.float32):
        return torch.nn.Parameter(torch.randn(*shape, dtype=dtype, generator=generator))

    return ([draw(8, 10, 6, 5, dtype=torch.complex64), draw(6, 9, 7, 4, dtype=torch.complex64)],
            [draw(30, 40), draw(9)])


def run(opt, params, begin, end):
    for step in range(begin, end):
        generator = torch.Generator().manual_seed(step)
        for param in params:
            param.grad = torch.randn(param.shape, dtype=param.dtype, generator=generator)
        opt.step()


def near(ours, theirs):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs))


def test_groups_of_neuraloperator():
    FNO = pytest.importorskip("neuralop.models").FNO
    torch.manual_seed(0)
    fno = FNO(n_modes=(12, 12), hidden_channels=16, in_channels=1, out_channels=1, n_layers=2)
    groups = libtgrad.fno_tensorgrad_param_groups(fno, rank=0.2, sparse_ratio=0.05)
    assert all(p.is_complex() for _, p in groups[1]["params"]) and len(groups[1]["params"]) == 2
    opt = libtgrad.TensorGRaD(groups, lr=1e-2)
    x = torch.randn(4, 1, 16, 16)
    losses = []
    for _ in range(8):
        opt.zero_grad()
        losses.append((fno(x) - x).square().mean())
        losses[-1].backward()
        opt.step()
    assert losses[-1] < losses[0] and len(opt.projection_errors()) == 2
    assert opt.memory()["state"] < 0.4 * opt.memory()["adamw"]


@pytest.mark.parametrize("rank", [0.25, 4, [4, 5, 3, 2]], ids=str)
def test_its_arguments_are_taken(rank):
    spectral, rest = make()
    opt = libtgrad.TensorGRaD(rest, galore_params=spectral, galore_rank=rank, lr=1e-2, correct_bias=True,
                              galore_update_proj_gap=20, galore_scale=0.5, warm_restart=False,
                              activation_checkpoint=True)
    theirs = AdamW(copy.deepcopy(rest), galore_params=copy.deepcopy(spectral), galore_rank=rank)
    run(opt, spectral + rest, 0, 1)
    params = theirs.param_groups[1]["params"]
    run(theirs, params, 0, 1)
    low_rank = opt.param_groups[1]
    assert [low_rank[key] for key in ("scale", "update_proj_gap", "tucker_warm_restart", "eps")] == [
        0.5, 20, False, 1e-6]
    for i, param in enumerate(params):
        projector = theirs.state[param]["projector"]
        found = opt.state_dict()["state"][2 + i]
        shapes = [factor.shape for factor in projector.proj_tensor]
        assert [found[f"0.factor{mode}"].shape for mode in range(4)] == shapes
    assert "0.factor0" not in opt.state_dict()["state"][0]  # the others are dense


def test_names_in_groups_and_of_models():
    net = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 5), torch.nn.Flatten())
    groups = libtgrad.param_groups(net, min_params=100, warm_restart=False)
    assert any(group.get("min_entries") == 100 and group["tucker_warm_restart"] is False for group in groups)
    opt = libtgrad.TensorGRaD([{"params": make()[0], "min_params": 7, "warm_restart": False}])
    assert opt.param_groups[0]["min_entries"] == 7 and not opt.param_groups[0]["tucker_warm_restart"]


def test_arguments_without_meaning_are_refused():
    spectral, rest = make()
    with pytest.raises(libtgrad.Error, match="galore_rank: it is for galore_params, and there are none"):
        libtgrad.TensorGRaD(rest, galore_rank=0.25)
    with pytest.raises(libtgrad.Error, match="correct_bias: False"):
        libtgrad.TensorGRaD(rest, galore_params=spectral, correct_bias=False)


@pytest.mark.parametrize("rank", [None, 0.25, 4, [4, 5, 3, 2]], ids=str)
def test_its_state_goes_on(rank):
    spectral, rest = make()
    galore = {} if rank is None else {"galore_params": spectral, "galore_rank": rank}
    theirs = AdamW(rest + spectral if rank is None else rest, lr=1e-2, weight_decay=0.1, **galore)
    run(theirs, spectral + rest, 0, 3)
    file = io.BytesIO()
    torch.save(theirs.state_dict(), file)
    file.seek(0)
    state = libtgrad.from_neuralop_state(torch.load(file, weights_only=False))
    others = [copy.deepcopy(part) for part in (spectral, rest)]
    galore = {} if rank is None else {"galore_params": others[0], "galore_rank": rank}
    ours = libtgrad.TensorGRaD(others[1] + others[0] if rank is None else others[1], match_rms=False,
                               **galore)
    ours.load_state_dict(state)
    for opt, params in ((theirs, spectral + rest), (ours, others[0] + others[1])):
        run(opt, params, 3, 8)
    assert near(others[0] + others[1], spectral + rest)
    assert [group["lr"] for group in ours.param_groups] == [1e-2] * len(ours.param_groups)


GROUP = {"tensorgrad": True, "rank": 0.2, "sparse_ratio": 0.05, "update_proj_gap": 20, "scale": 0.7,
         "sparse_scale": 2.0, "lambda_sparse": 0.5, "sparse_type": "randomk", "warm_restart": True}


def test_groups_of_its_tensorgrad():
    spectral, rest = make()
    opt = libtgrad.TensorGRaD([{"params": rest, "tensorgrad": False}, {"params": spectral, **GROUP}], lr=1e-2)
    run(opt, spectral + rest, 0, 2)
    kinds = [bytes(opt.state_dict()["state"][i]["method"].tolist()) for i in range(4)]
    assert kinds == 2 * [b"adam modulus"] + 2 * [b"composite low_rank+unstructured_sparse modulus"]
    group = opt.param_groups[1]
    assert [group[key] for key in ("second_scale", "lambda_sparse", "update_proj_gap", "eps", "match_rms")] == [
        2.0, 0.5, 20, 1e-6, False]


class Compressed:
    """A weight with a core and entries of what that leaves, as its TensorGRaD moves it between refreshes."""

    def __init__(self, weight, opt, has_entries):
        draw = torch.Generator().manual_seed(5)
        self.weight, self.has_entries = weight, has_entries
        shape = opt.state_dict()["state"][2]
        self.factors = [torch.linalg.qr(torch.randn(*shape[f"0.factor{i}"].shape, dtype=weight.dtype, generator=draw))[0]
                        for i in range(4)]
        self.indices = torch.randperm(weight.numel(), generator=draw)[:int(0.05 * weight.numel())].sort().values
        sizes = [[f.shape[1] for f in self.factors], [len(self.indices)]][:1 + has_entries]
        self.moments = [[torch.randn(size, dtype=weight.dtype, generator=draw),
                         torch.rand(size, generator=draw).to(weight.dtype)] for size in sizes]

    def state(self):
        found = {"step": 3, "low_rank_projector": types.SimpleNamespace(proj_tensor=self.factors)}
        if self.has_entries:
            found["sparse_projector"] = types.SimpleNamespace(indices=self.indices, orig_shape=self.weight.shape)
        for name, (m, v) in zip(("low_rank", "sparse"), self.moments):
            found.update({f"{name}_exp_avg": m.clone(), f"{name}_exp_avg_sq": v.clone()})
        return found

    def expand(self, core):
        return torch.einsum("ijkl,ai,bj,ck,dl->abcd", core, *self.factors)

    def step(self, gradient, number):
        core = torch.einsum("abcd,ai,bj,ck,dl->ijkl", gradient, *[f.conj() for f in self.factors])
        values = [core, (gradient - self.expand(core)).flatten()[self.indices]][:len(self.moments)]
        moved = []
        for value, (m, v) in zip(values, self.moments):
            m.mul_(0.9).add_(value, alpha=0.1)
            v.mul_(0.999).add_(value * value.conj(), alpha=0.001)
            moved.append(m / (v.sqrt() + 1e-6))
        update = 0.7 * self.expand(moved[0]).contiguous()
        if self.has_entries:
            update.view(-1)[self.indices] += 0.5 * 2.0 * moved[1]
        self.weight -= 1e-2 * math.sqrt(1 - 0.999 ** number) / (1 - 0.9 ** number) * update


@pytest.mark.parametrize("has_entries", [False, True])
def test_a_state_of_its_tensorgrad_goes_on(has_entries):
    weight = torch.nn.Parameter(make()[0][0].detach().clone())
    bias = torch.nn.Parameter(torch.ones(9))
    group = {**GROUP, "sparse_ratio": 0.05 if has_entries else None}
    other = torch.nn.Parameter(torch.ones(4))

    def optimizer():
        return libtgrad.TensorGRaD([{"params": [bias, other], "tensorgrad": False}, {"params": [weight], **group}],
                                   lr=1e-2)

    shaped = optimizer()
    run(shaped, [bias, other, weight], 0, 1)
    theirs = Compressed(weight.detach().clone(), shaped, has_entries)
    base = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0, "correct_bias": True}
    state = {"state": {2: theirs.state(), 0: {"step": 3, "exp_avg": torch.ones(9), "exp_avg_sq": torch.ones(9)}},
             "param_groups": [{**base, "tensorgrad": False, "params": [0, 1]}, {**base, **group, "params": [2]}]}
    opt = optimizer()
    opt.load_state_dict(libtgrad.from_neuralop_state(state))
    for number in range(4, 9):
        weight.grad = torch.randn(weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(number))
        theirs.step(weight.grad, number)
        opt.step()
    assert torch.allclose(weight, theirs.weight, atol=1e-5)


def test_other_states_are_refused():
    _, rest = make()
    adam = torch.optim.AdamW(rest)
    run(adam, rest, 0, 1)
    with pytest.raises(libtgrad.Error, match="no 'correct_bias'; this is no state of neuraloperator's AdamW"):
        libtgrad.from_neuralop_state(adam.state_dict())
    theirs = AdamW(rest)
    run(theirs, rest, 0, 1)
    state = theirs.state_dict()
    del state["state"][0]["exp_avg"]
    with pytest.raises(libtgrad.Error, match="parameter 0 has no 'exp_avg'"):
        libtgrad.from_neuralop_state(state)
