"""Parameters that come, go, freeze, thaw and change between steps, and what surrounds a step."""
import functools
import random

import pytest

torch = pytest.importorskip("torch")

import libtgrad
from torch_cases import same, tensorgrad


def param(*shape, fill=0.0, dtype=torch.float32):
    return torch.nn.Parameter(torch.full(shape, fill, dtype=dtype))


def adam(params, **keys):
    return libtgrad.TensorGRaD(params, lr=0.1, eps=1e-12, method="adam", **keys)


def step(opt, *params):
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


# ---- parameters that come and go ----

def test_replaced_parameters_are_updated_at_once():
    old, new, other = param(40, 50), param(60, 50), param(7)
    opt = adam([old])
    step(opt, old)
    opt.param_groups[0]["params"] = [new]
    step(opt, new)
    assert torch.allclose(new, torch.tensor(-0.1)) and torch.allclose(old, torch.tensor(-0.1))
    assert set(opt.state) == {new}
    del opt.param_groups[0]
    opt.add_param_group({"params": [other]})
    step(opt, other)
    assert torch.allclose(other, torch.tensor(-0.1))


@pytest.mark.parametrize("keys", [{"max_grad_norm": 1.0}, {"accumulate": True}, {}])
def test_parameters_leave_between_steps_in_backward(keys):
    a, b, new = param(40, 50), param(60, 50), param(30, 30)
    opt = tensorgrad([{"params": [a]}, {"params": [b]}], in_backward=True, **keys)
    (a.sum() + b.sum()).backward()
    opt.step()
    del opt.param_groups[1]
    a.sum().backward()
    opt.step()
    opt.zero_grad()
    opt.param_groups[0]["params"][0] = new
    opt._hook([new])
    left = a.detach().clone()
    for _ in range(2):
        opt.zero_grad()
        new.sum().backward()
        opt.step()
    assert torch.equal(a, left) and float(new.detach().abs().max()) > 0.0


def test_parameters_leave_while_sums_wait():
    a, b = param(40, 50), param(60, 50)
    opt = tensorgrad([{"params": [a]}, {"params": [b]}], in_backward=True, accumulate=True)
    for _ in range(2):
        (a.sum() + b.sum()).backward()
        if len(opt.param_groups) > 1:
            del opt.param_groups[1]
        opt.step()
        opt.zero_grad()
    left = b.detach().clone()
    (a.sum() + b.sum()).backward()
    opt.step()
    assert torch.equal(b, left) and float(a.detach().abs().max()) > 0.0


def test_small_parameters_thaw_beside_8_bit_moments():
    net = torch.nn.Linear(200, 200)
    net.bias.requires_grad_(False)
    opt = libtgrad.TensorGRaD(net.parameters(), method="adam", state_precision="8bit")
    for thaws in False, True, True:
        net.bias.requires_grad_(thaws)
        opt.zero_grad()
        net(torch.ones(2, 200)).sum().backward()
        opt.step()
    assert len(opt._engines) == 1
    head = param(5, 5)
    opt.add_param_group({"params": [head]})
    step(opt, head)
    del opt.param_groups[0]  # and alone
    step(opt, head)
    twin = libtgrad.TensorGRaD([head], method="adam", state_precision="8bit")
    twin.load_state_dict(opt.state_dict())
    step(twin, head)


def test_those_that_thaw_join_the_others_and_resume():
    ends = []
    for resumes in False, True:
        params = [param(40, 50, fill=0.5), param(30, 20, 10, fill=-0.5), param(9)]
        params[1].requires_grad_(False)
        make = functools.partial(tensorgrad, sparse_type="randk", state_precision="half")
        opt = make(params)
        for i in range(6):
            if i == 2:
                params[1].requires_grad_(True)
            generator = torch.Generator().manual_seed(i)
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator) if p.requires_grad else None
            opt.step()
            if resumes and i == 3:
                state = opt.state_dict()
                opt = make(params)
                opt.load_state_dict(state)
        assert len(opt._engines) == 1
        ends.append([p.detach().clone() for p in params])
    assert same(*ends)


def test_resumed_after_parameters_changed_places():
    """Random numbers are those of a parameter's place in the groups now."""
    ends = []
    for resumes in False, True:
        frozen, a = param(8, 8), param(40, 50, fill=0.5)
        frozen.requires_grad_(False)
        opt = tensorgrad([{"params": [frozen]}, {"params": [a]}], sparse_type="randk")
        for i in range(8):
            if i == 2:
                del opt.param_groups[0]
            a.grad = torch.randn(a.shape, generator=torch.Generator().manual_seed(i))
            opt.step()
            if resumes and i == 3:
                state = opt.state_dict()
                opt = tensorgrad([{"params": [a]}], sparse_type="randk")
                opt.load_state_dict(state)
        ends.append([a.detach().clone()])
    assert same(*ends)


def test_ids_that_are_used_again():
    """States and hooks are those of a parameter, not of whatever has its address later."""
    a, b = param(40, 50), param(40, 50)
    opt = adam([a, b])
    for _ in range(3):
        step(opt, a, b)
    state = opt.state_dict()
    b.requires_grad_(False)
    opt = adam([a, b])
    opt.load_state_dict(state)
    b.grad = None
    step(opt, a)
    opt.param_groups[0]["params"].pop()
    step(opt, a)
    was, kept = id(b), []
    del b
    for _ in range(2000):
        new = param(40, 50)
        if id(new) == was:
            break
        kept.append(new)
    opt.param_groups[0]["params"].append(new)
    new.grad = torch.full_like(new, -1.0)
    opt.step()
    assert torch.allclose(new, torch.tensor(0.1))


def test_lazy_modules():
    for keys in {}, {"in_backward": True}:
        net = torch.nn.Sequential(torch.nn.LazyLinear(6), torch.nn.Linear(6, 3))
        opt = adam(net.parameters(), **keys)
        opt.step()
        for _ in range(2):
            opt.zero_grad()
            net(torch.ones(2, 5)).sum().backward()
            before = net[0].weight.detach().clone()
            opt.step()
        assert torch.isfinite(net[0].weight).all()
        assert keys or not torch.equal(net[0].weight, before)


# ---- weights and gradients that are not what they were ----

def test_views_in_place_of_weights():
    p = param(40, 40, dtype=torch.complex64)
    opt = adam([p])
    step(opt, p)
    p.data = p.data.conj()
    with pytest.raises(libtgrad.Error, match="it is a conjugate or negative view"):
        step(opt, p)
    q = param(40, 40)
    for keys in {}, {"in_backward": True}, {"in_backward": True, "accumulate": True}:
        opt = adam([q], **keys)
        q.sum().backward()
        opt.step()
        q.grad, q.data = None, q.data.t()
        with pytest.raises(libtgrad.Error, match="it is not contiguous"):
            q.sum().backward()
            opt.step()
        q.data, q.grad = q.data.contiguous(), None


def test_gradients_of_another_shape():
    a = param(400, 500)
    opt = adam([a])
    step(opt, a)
    kept = a.detach().clone()
    a.grad.data = torch.ones(3)
    with pytest.raises(libtgrad.Error, match="gradient of parameter 0: it is 3 float32, its weight is 400x500"):
        opt.step()
    assert torch.equal(a, kept)


def test_weights_of_a_step_that_failed_are_marked():
    params = [param(60, 50, fill=1.0), param(40, 50, fill=1.0)]
    opt = adam(params, nonfinite="error")
    loss = params[0].square().sum()
    for p in params:
        p.grad = torch.ones_like(p)
    params[1].grad[0, 0] = float("nan")
    with pytest.raises(libtgrad.Error):
        opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_that_others_have_used():
    a = param(40, 50)
    opt = adam([a], in_backward=True)
    a.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    other = adam([a], in_backward=True)
    a.sum().backward()
    opt.step()
    other.step()


# ---- settings and states ----

def test_settings_that_are_tensors_are_followed():
    a, b = param(40, 50, fill=1.0), param(40, 50, fill=1.0)
    decay = torch.tensor(0.0)
    opt, plain = adam([a], weight_decay=decay), adam([b], weight_decay=0.0)
    for value in 0.0, 0.5:
        decay.fill_(value)
        plain.param_groups[0]["weight_decay"] = value
        step(opt, a)
        step(plain, b)
    assert torch.equal(a, b)


def test_seeds():
    for seed in -1, 1 << 64:
        with pytest.raises(libtgrad.Error, match="seed: .*; a whole number from 0 to 2"):
            adam([param(3)], seed=seed)
    a = param(40, 50)
    opt = adam([a], seed=(1 << 64) - 1)
    step(opt, a)
    opt.load_state_dict(opt.state_dict())
    step(opt, a)


def test_names_that_begin_with_others():
    params = [("x", param(40, 50)), ("x.weight", param(30, 50)), ("x.weight.m", param(20))]
    opt = tensorgrad(params)
    tensors = [p for _, p in params]
    step(opt, *tensors)
    state = opt.state_dict()
    assert "counters" in state["state"][0] and not any("weight" in part for part in state["state"][0])
    opt.load_state_dict(state)
    step(opt, *tensors)


def test_states_that_cannot_be_loaded_leave_all_as_it_was():
    a = param(40, 50)
    opt = tensorgrad([a])
    step(opt, a)
    state = opt.state_dict()
    state["state"][0] = {**state["state"][0], "method": torch.ones(3)}
    with pytest.raises(libtgrad.Error):
        opt.load_state_dict(state)
    assert set(opt.state) == {a}
    step(opt, a)


# ---- what surrounds a step ----

@pytest.mark.parametrize("wraps", [False, True])
def test_hooks_of_steps_that_are_wrapped(wraps, monkeypatch):
    old, calls = libtgrad.TensorGRaD.step, []

    def timed(self, *args, **keys):
        return old(self, *args, **keys)

    class Derived(libtgrad.TensorGRaD):
        step = functools.wraps(old)(timed)

    a = param(7)
    opt = Derived([a], method="adam") if wraps else adam([a])
    opt.register_step_post_hook(lambda *_: calls.append(1))
    if not wraps:
        monkeypatch.setattr(libtgrad.TensorGRaD, "step", timed)
    step(opt, a)
    assert calls == [1]


def test_frozen_parameters_of_processes_stay(process_group):
    a, b = param(40, 50), param(40, 50)
    opt = adam([a, b]).distributed()
    step(opt, a, b)
    b.requires_grad_(False)
    b.grad, left = None, b.detach().clone()
    step(opt, a)
    assert torch.equal(b, left)


@pytest.mark.parametrize("unscales", [False, True])
def test_grad_scaler_of_processes(process_group, unscales):
    """Each finds an overflow in the sums of all; gradients that were unscaled before are not again."""
    a, b = param(40, 50), param(40, 50)
    opt, plain = adam([a]).distributed(), adam([b])
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for factor in 1.0, float("inf"), 0.5:
        for p, optim in (a, opt), (b, plain):
            optim.zero_grad()
            loss = (p * 3.0 * factor).sum()
            (scaler.scale(loss) if optim is opt else loss).backward()
        if unscales:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        if factor < 2.0:
            plain.step()
    assert torch.allclose(a, b, rtol=1e-5) and scaler.get_scale() == 32.0
    opt.zero_grad()  # nothing to scale
    scaler.scale(torch.ones((), requires_grad=True)).backward()
    a.requires_grad_(False)
    scaler.step(opt)
    scaler.update()


# ---- all of it, at random ----

class Twin:
    """A parameter, and the same one with an AdamW of torch."""

    def __init__(self, choose):
        shape = [choose.randint(1, 5) for _ in range(choose.randint(0, 3))]
        generator = torch.Generator().manual_seed(choose.getrandbits(30))
        self.param = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator))
        self.other = torch.nn.Parameter(self.param.detach().clone())
        self.adamw = torch.optim.AdamW([self.other], lr=0.01, eps=1e-12, weight_decay=0.0)


def change(choose, opt, twins):
    """One change of the groups `twins`, which are those of `opt`."""
    kind, i = choose.randrange(8), choose.randrange(len(twins))
    groups = opt.param_groups
    if kind == 0:
        twins.append([Twin(choose)])
        opt.add_param_group({"params": [twin.param for twin in twins[-1]]})
    elif kind == 1 and len(twins) > 1:
        twins.pop(i)
        groups.pop(i)
    elif kind == 2:
        twins[i][0] = Twin(choose)
        groups[i]["params"][0] = twins[i][0].param
    elif kind == 3:
        twin = choose.choice(twins[i])
        twin.param.requires_grad_(not twin.param.requires_grad)
    elif kind == 4 and len(twins[i]) > 1:
        twins[i].pop()
        groups[i]["params"].pop()
    elif kind == 5:
        twins.reverse()
        groups.reverse()
    elif kind == 6:
        twin = choose.choice(twins[i])
        twin.param.data = twin.param.data.clone()


@pytest.mark.parametrize("keys", [{}, {"in_backward": True}, {"in_backward": True, "accumulate": True}])
@pytest.mark.parametrize("seed", range(12))
def test_any_changes(keys, seed):
    choose = random.Random(seed)
    twins = [[Twin(choose) for _ in range(choose.randint(1, 3))] for _ in range(2)]

    def make():
        return libtgrad.TensorGRaD([{"params": [twin.param for twin in group]} for group in twins], lr=0.01,
                                   eps=1e-12, method="adam", **keys)

    opt = make()
    for _ in range(20):
        change(choose, opt, twins)
        if choose.randrange(6) == 0:
            state = opt.state_dict()
            opt = make()
            opt.load_state_dict(state)
        opt.zero_grad()
        opt.memory()  # hooks of those that came
        loss = 0.0
        for twin in (twin for group in twins for twin in group):
            twin.other.grad = None
            if twin.param.requires_grad and choose.randrange(4):
                twin.other.grad = torch.full_like(twin.other, choose.uniform(-1.0, 1.0))
                loss = loss + (twin.param * twin.other.grad).sum()
            twin.adamw.step()
        if torch.is_tensor(loss):
            loss.backward()
        opt.step()
        for twin in (twin for group in twins for twin in group):
            assert torch.allclose(twin.param, twin.other, rtol=0.0, atol=1e-9), (seed, keys)
