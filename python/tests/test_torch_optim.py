"""TensorGRaD as a torch.optim.Optimizer."""
import copy
import io
import pathlib
import pickle
import re

import pytest

torch = pytest.importorskip("torch")

import libtgrad
from torch_cases import METHODS, make_gradients, make_params, run, same, tensorgrad

STATES = ["full", "half", "8bit"]


def large_params():
    """8-bit moments are for parameters with 4096 values and more."""
    torch.manual_seed(3)
    return [torch.nn.Parameter(torch.randn(20, 20, 8, 6, dtype=torch.complex64)),
            torch.nn.Parameter(torch.randn(140, 130)), torch.nn.Parameter(torch.randn(9))]


def through_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ---- updates ----

def test_dense_adam_is_that_of_the_formula():
    params = make_params()
    weights = [p.detach().clone() for p in params]
    m = [torch.zeros_like(w) for w in weights]
    v = [torch.zeros_like(w.abs()) for w in weights]
    opt = tensorgrad(params, method="adam", preset="paper", match_rms=False)
    for step in range(4):
        for i, g in enumerate(make_gradients(params, step)):
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g.abs() ** 2
            rate = 1e-2 * (1 - 0.999 ** (step + 1)) ** 0.5 / (1 - 0.9 ** (step + 1))
            weights[i] = (weights[i] - rate * m[i] / (v[i].sqrt() + 1e-6)) * (1 - 1e-4)
        moved = run(opt, params, 1, step)
    for w, expected in zip(moved, weights):
        assert torch.allclose(w, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dims", range(1, 7))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_tensors_of_one_to_six_dims(dims, dtype):
    torch.manual_seed(dims)
    p = torch.nn.Parameter(torch.randn([300, 40, 11, 7, 5, 4][dims - 1:dims] * dims, dtype=dtype))
    opt = tensorgrad([p], rank=0.3)
    target = torch.randn_like(p)
    first = (p - target).abs().square().sum().item()
    for _ in range(20):
        opt.zero_grad()
        loss = (p - target).abs().square().sum()
        loss.backward()
        opt.step()
    assert loss.item() < first and opt.projection_errors()["parameter 0"] < 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", STATES)
def test_two_runs_have_the_same_bits(method, precision):
    results = []
    for _ in range(2):
        params = large_params()
        results.append(run(tensorgrad(params, method=method, state_precision=precision), params, 5))
    assert same(*results)
    assert not torch.equal(results[0][0], large_params()[0])


@pytest.mark.parametrize("method, tolerance", [("adam", 0.01), ("unstructured", 0.01), ("tensorgrad", 0.15)])
def test_updates_are_as_long_as_those_of_adamw(method, tolerance):
    """The first one of AdamW has the length of the rate in every real number. A core has zeros at first,
    that of a matrix many."""
    for weight in make_params()[:2 if method == "tensorgrad" else 3]:
        before = weight.detach().clone()
        moved, = run(libtgrad.TensorGRaD([weight], lr=1e-2, method=method, min_entries=100), [weight], 1)
        change = torch.view_as_real(moved - before) if weight.is_complex() else moved - before
        assert abs(change.square().mean().sqrt() / 1e-2 - 1) < tolerance


def test_lion_moves_by_the_rate():
    params = make_params()
    before = [p.detach().clone() for p in params]
    moved = run(tensorgrad(params, method="adam", rule="lion", weight_decay=0.0), params, 1)
    assert torch.allclose((moved[2] - before[2]).abs(), torch.tensor(1e-2), rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["adam", "tensorgrad"])
def test_weights_in_16_bits_follow_those_in_32(dtype, method):
    torch.manual_seed(0)
    wide = torch.nn.Parameter(torch.randn(40, 50).to(dtype).float())
    narrow = torch.nn.Parameter(wide.detach().to(dtype))
    opts = [tensorgrad([p], method=method) for p in (wide, narrow)]
    for step in range(5):
        g = torch.randn(40, 50).to(dtype)
        wide.grad, narrow.grad = g.float(), g
        for opt in opts:
            opt.step()
    moved = (wide - narrow.float()).norm() / wide.norm()
    assert narrow.dtype is dtype and moved < 0.02


def test_state_is_a_quarter_and_with_bytes_a_sixteenth():
    for precision, share in ("full", 0.25), ("8bit", 0.065):
        p = torch.nn.Parameter(torch.zeros(48, 48, 32, 17, dtype=torch.complex64))
        memory = tensorgrad([p], state_precision=precision).memory()
        assert memory["state"] <= share * memory["adamw"], (precision, memory)


# ---- torch's ways ----

def test_schedulers_closures_and_added_groups():
    params = make_params()
    opt = tensorgrad(params[:2])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=10)  # also betas
    opt.add_param_group({"params": params[2:], "lr": 0.5, "betas": (0.8, 0.9), "method": "adam"})
    run(opt, params[:2], 2)
    scheduler.base_lrs.append(0.5)

    def closure():
        opt.zero_grad()
        loss = sum(p.abs().square().sum() for p in params)
        loss.backward()
        return loss

    losses = [opt.step(closure).item() for _ in range(5)]
    assert losses[-1] < losses[0] and opt.stats()["steps"] == 2 * 2 + 5 * 4


@pytest.mark.parametrize("in_backward", [False, True])
def test_groups_with_and_without_names(in_backward):
    model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Linear(50, 30))
    model[1].requires_grad_(False)
    opt = tensorgrad(libtgrad.param_groups(model, min_entries=100), in_backward=in_backward)
    named = sum(len(group["params"]) for group in opt.param_groups)
    model[1].requires_grad_(True)
    late = {"params": model[1].parameters(), "lr": 0.1}
    opt.add_param_group(late)
    assert opt.param_groups[-1] is late and late["param_names"] == [f"parameter {named + i}" for i in range(2)]
    alone = torch.nn.Parameter(torch.ones(3))
    opt.add_param_group({"params": alone})
    before = [p.detach().clone() for p in model.parameters()]
    (model(torch.ones(2, 40)).square().sum() + alone.sum()).backward()
    opt.step()
    assert not any(torch.equal(p, q) for p, q in zip(before, model.parameters()))
    assert list(opt.projection_errors())[-1] == f"parameter {named}" and not torch.equal(alone, torch.ones(3))
    plain = tensorgrad([torch.nn.Parameter(torch.ones(4))])
    plain.add_param_group({"params": model.named_parameters()})
    assert all("param_names" not in group for group in plain.param_groups)


@pytest.mark.parametrize("in_backward", [False, True])
def test_groups_and_parameters_that_leave(in_backward):
    def moved():
        before = [p.detach().clone() for p in params]
        opt.zero_grad()
        sum(p.sum() for p in params).backward()
        opt.step()
        return [(p - q).abs().max().item() for p, q in zip(params, before)]

    params = [torch.nn.Parameter(torch.ones(40, 50)) for _ in range(3)]
    rates = [0.1, 0.01, 0.001]
    opt = libtgrad.TensorGRaD([{"params": [p], "lr": rate} for p, rate in zip(params, rates)], method="adam",
                              in_backward=in_backward)
    assert moved() == pytest.approx(rates, rel=1e-3)
    del opt.param_groups[0]
    assert moved() == pytest.approx([0.0, *rates[1:]], rel=1e-3) and params[0].grad is not None
    opt.param_groups[0]["lr"] = 0.2
    assert moved() == pytest.approx([0.0, 0.2, 0.001], rel=1e-3)
    assert [state["counters"][0] for state in opt.state_dict()["state"].values()] == [3, 3]
    opt.param_groups[1]["params"][0] = params[2] = torch.nn.Parameter(torch.ones(60, 20))
    assert moved() == pytest.approx([0.0, 0.2, 0.001], rel=1e-3)
    assert [state["m"].numel() for state in opt.state_dict()["state"].values()] == [2000, 1200]
    opt.add_param_group({"params": [params[0]], "lr": 0.3})
    assert moved() == pytest.approx([0.3, 0.2, 0.001], rel=1e-3)
    assert [state["counters"][0] for state in opt.state_dict()["state"].values()] == [5, 2, 1]


def test_a_changed_rate_is_followed():
    for rate in 0.25, torch.tensor(0.25):
        params, other = make_params(), make_params()
        opt = tensorgrad(params, lr=1.0)
        opt.param_groups[0]["lr"] = rate
        assert same(run(opt, params, 3), run(tensorgrad(other, lr=0.25), other, 3))
        opt.param_groups[0]["lr"] = 0.0
        opt.param_groups[0]["weight_decay"] = 0.0
        still = [p.detach().clone() for p in params]
        assert same(run(opt, params, 1), still)


def test_what_shapes_the_state_cannot_change():
    params = make_params()
    opt = tensorgrad(params)
    run(opt, params, 1)
    opt.param_groups[0]["second_rank"] = 0.5
    with pytest.raises(libtgrad.Error, match="opt.second_rank: it cannot change from 0.05 to 0.5"):
        opt.step()


def test_hooks_and_zero_grad():
    params, seen = make_params(), []
    opt = tensorgrad(params)
    opt.register_step_pre_hook(lambda *a: seen.append("before"))
    opt.register_step_post_hook(lambda *a: seen.append("after"))
    run(opt, params, 1)
    opt.zero_grad()
    assert seen == ["before", "after"] and all(p.grad is None for p in params)
    before = [p.detach().clone() for p in params]
    opt.step()  # no gradients: nothing moves
    assert same(before, params)


class Longer(libtgrad.TensorGRaD):
    def step(self, *args):
        return super().step(*args)


@pytest.mark.parametrize("kind", [libtgrad.TensorGRaD, Longer])
def test_hooks_run_once_and_profilers_see_a_step(kind):
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    opt, calls = kind([p]), []
    places = {"pre": opt.register_step_pre_hook, "post": opt.register_step_post_hook,
              "all pre": register_optimizer_step_pre_hook, "all post": register_optimizer_step_post_hook}
    for name, register in places.items():
        handle = register(lambda *_, name=name: calls.append(name))
        opt.step()
        handle.remove()
        opt.step()
    assert calls == list(places)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        opt.step()
    names = [event.name for event in profile.events()]
    assert names.count(f"Optimizer.step#{kind.__name__}.step") == 1


def test_parameters_without_gradient_and_frozen_ones_stay():
    params = make_params()
    params[1].requires_grad_(False)
    before = params[1].detach().clone()
    opt = tensorgrad(params)
    params[0].grad = torch.ones_like(params[0])
    opt.step()
    assert torch.equal(params[1], before) and opt.stats()["steps"] == 1
    params[1].requires_grad_(True)  # thawed later
    params[1].grad = torch.ones_like(params[1])
    opt.step()
    assert not torch.equal(params[1], before) and opt.stats()["steps"] == 3


def test_one_is_frozen_and_another_thawed():
    params = make_params()
    params[1].requires_grad_(False)
    opt = tensorgrad(params[:2])
    params[0].grad = torch.ones_like(params[0])
    opt.step()
    params[0].requires_grad_(False)
    params[0].grad, before = None, params[1].detach().clone()
    params[1].requires_grad_(True)
    params[1].grad = torch.ones_like(params[1])
    opt.step()
    assert not torch.equal(params[1], before)


def test_a_large_parameter_goes_ahead():
    """With it, without it and without the others: each moves as it does alone."""
    def make():
        return [torch.nn.Parameter(torch.ones(n, m)) for n, m in ((30, 40), (1024, 1024), (5, 8))]

    together, alone = make(), make()
    opts = [tensorgrad([p], method="adam") for p in alone]
    opt = tensorgrad(together, method="adam")
    for absent in [], [1], [0, 2], [0, 1, 2], []:
        for i, (p, q) in enumerate(zip(together, alone)):
            p.grad = q.grad = None if i in absent else torch.randn(p.shape[::-1]).t()  # copied
        for one in (opt, *opts):
            one.step()
    assert same(together, alone) and opt.stats()["steps"] == 9


def test_two_models_with_the_same_names():
    models = [torch.nn.Linear(30, 40), torch.nn.Linear(50, 60)]
    opt = tensorgrad([group for model in models for group in libtgrad.param_groups(model)])
    for model in models:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
    opt.step()
    state = through_file(opt.state_dict())
    assert len(opt.projection_errors()) == 2 and len(state["state"]) == 4
    opt.load_state_dict(state)
    opt.step()
    assert opt.stats()["steps"] == 8


def test_settings_may_be_numbers_of_numpy():
    numpy = pytest.importorskip("numpy")
    strange = {"weight_decay": numpy.float64(0.01), "eps": numpy.float32(2 ** -20), "rank": numpy.float64(0.5),
               "update_proj_gap": numpy.int64(3), "betas": (numpy.float64(0.5), torch.tensor(0.75))}
    plain = {"weight_decay": 0.01, "eps": 2 ** -20, "rank": 0.5, "update_proj_gap": 3, "betas": (0.5, 0.75)}
    ends = []
    for keys in (strange, plain):
        params = make_params()
        ends.append(run(tensorgrad(params, **keys), params, 2))
    assert same(*ends)


def test_grad_scaler_skips_on_inf():
    params = make_params()[1:]
    opt = tensorgrad(params)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.full_like(p, 8.0)
    params[1].grad[0, 0] = torch.inf
    scaler.scale(torch.ones(()))
    scaler.step(opt)
    scaler.update()
    assert same(before, params) and scaler.get_scale() == 2.0
    for p in params:
        p.grad = torch.full_like(p, 8.0)
    scaler.step(opt)
    assert not same(before, params)


def test_model_is_compiled_step_is_not():
    model = torch.nn.Linear(40, 40)
    opt = tensorgrad(libtgrad.param_groups(model, min_entries=100))

    @torch.compile(backend="eager")
    def train(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    x = torch.randn(16, 40)
    losses = [train(x).item() for _ in range(4)]
    assert losses[-1] < losses[0] and opt.stats()["steps"] == 8


@pytest.mark.parametrize("option", ["foreach", "fused", "capturable", "differentiable", "maximize", "amsgrad"])
def test_options_of_other_optimizers_are_refused_where_they_are_set(option):
    with pytest.raises(libtgrad.Error, match=f"{option}: TensorGRaD has no such option"):
        tensorgrad(make_params(), **{option: True})
    ends = []
    for keys in {}, {option: False}, {option: None}:
        params = make_params()
        ends.append(run(tensorgrad(params, **keys), params, 2))
    assert same(ends[0], ends[1]) and same(ends[0], ends[2])


def views_of(values):
    """Tensors with these values that are no plain arrays."""
    place = torch.frombuffer(bytearray(values.nbytes + 2), dtype=values.dtype, offset=2, count=values.numel())
    yield place.view(values.shape).copy_(values)
    yield values.t().contiguous().t()
    yield torch._neg_view(-values)
    if values.is_complex():
        yield values.conj().resolve_conj().conj()


@pytest.mark.parametrize("keys", [{}, {"in_backward": True}, {"in_backward": True, "accumulate": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_gradients_may_be_views(dtype, keys):
    values = torch.randn(30, 40, dtype=dtype, generator=torch.Generator().manual_seed(3))
    ends = []
    for gradient in [values, *views_of(values)]:
        assert torch.equal(gradient, values)
        p = torch.nn.Parameter(torch.ones(30, 40, dtype=dtype))
        opt = tensorgrad([p], **keys)
        for _ in range(2):
            p.grad = gradient
            if keys:
                opt._receive(p)
            opt.step()
        ends.append(p.detach())
    assert all(same([ends[0]], [end]) for end in ends[1:]) and len(ends) >= 4


# ---- state ----

@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", STATES)
def test_resume_has_the_same_bits(method, precision):
    keys = {"method": method, "state_precision": precision, "seed": 7}
    params, other = large_params(), large_params()
    whole = run(tensorgrad(params, **keys), params, 7)
    opt = tensorgrad(other, **keys)
    run(opt, other, 4)
    state = through_file(opt.state_dict())
    for parts in state["state"].values():
        assert all(torch.is_tensor(part) for part in parts.values())
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in other]
    again = tensorgrad(resumed, method="adam", lr=5.0)  # settings come from the state
    again.load_state_dict(state)
    assert again.param_groups[0]["lr"] == 1e-2
    assert same(run(again, resumed, 3, 4), whole)


def test_ranks_by_memory_resume():
    keys = {"method": "lowrank", "memory_budget": 0.3}
    params, other = [[torch.nn.Parameter(p) for p in large_params()[:1]] for _ in range(2)]
    whole = run(tensorgrad(params, **keys), params, 6)
    opt = tensorgrad(other, **keys)
    run(opt, other, 3)
    again = tensorgrad(other, **keys)
    again.load_state_dict(through_file(opt.state_dict()))
    assert same(run(again, other, 3, 3), whole)


def test_random_sets_are_the_same_in_a_group_added_later():
    keys = {"method": "unstructured", "sparse_type": "randk"}
    params, other = make_params(), make_params()
    opt = tensorgrad(params[:2], **keys)
    run(opt, params[:2], 1)
    opt.add_param_group({"params": params[2:]})
    later = run(opt, params, 3, 1)
    opt = tensorgrad(other[:2], **keys)
    run(opt, other[:2], 1)
    opt.add_param_group({"params": other[2:]})
    run(opt, other, 1, 1)
    state = through_file(opt.state_dict())
    again = tensorgrad(other[:2], **keys)
    again.add_param_group({"params": other[2:]})
    again.load_state_dict(state)  # one list for both groups from here on
    assert same(run(again, other, 2, 2), later)


def test_moments_of_16_bit_weights_stay_wide():
    p = torch.nn.Parameter(torch.randn(50, 50).bfloat16())
    opt = tensorgrad([p])
    run(opt, [p], 2)
    state = opt.state_dict()
    opt.load_state_dict(state)
    loaded = opt.state_dict()["state"][0]
    assert loaded["m"].dtype is torch.float32 and loaded["0.bitmap"].dtype is torch.int64
    assert all(torch.equal(loaded[k], v) for k, v in state["state"][0].items())


@pytest.mark.parametrize("way", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_go_on_alike(way):
    params = make_params()
    opt = tensorgrad(params)
    run(opt, params, 2)
    twin = way(opt)
    others = twin.param_groups[0]["params"]
    assert others[0] is not params[0]
    assert same(run(opt, params, 3, 2), run(twin, others, 3, 2))


def test_states_are_on_the_host_whatever_the_default_device():
    params = make_params()
    opt = tensorgrad(params)
    with torch.device("meta"):  # as a GPU with torch.set_default_device("cuda")
        run(opt, params, 2, make=lambda params, step: [torch.ones_like(p) for p in params])
        state = opt.state_dict()
        assert all(t.device.type == "cpu" for parts in state["state"].values() for t in parts.values())
        opt.load_state_dict(state)
        assert opt.stats()["steps"] == 8 and opt.memory()["state"] > 0


def test_states_of_other_optimizers_are_refused():
    params = make_params()
    opt, other = tensorgrad(params), torch.optim.AdamW(params)
    run(other, params, 1)
    with pytest.raises(libtgrad.Error, match="a parameter group has no 'seed'; this is no state of TensorGRaD"):
        opt.load_state_dict(other.state_dict())
    later = opt.state_dict()
    later["param_groups"][0]["format"] = 2
    with pytest.raises(libtgrad.Error, match="it has format 2, libtgrad .* reads 1; take the version that saved it"):
        opt.load_state_dict(later)
    run(opt, params, 1)


def test_load_hooks_see_the_whole_state():
    params, seen = make_params(), []
    opt = tensorgrad(params)
    run(opt, params, 1)
    state = opt.state_dict()
    opt.register_load_state_dict_pre_hook(lambda o, s: seen.append(len(s["state"])))
    opt.register_load_state_dict_post_hook(lambda o: seen.append(o.stats()["steps"]))
    opt.load_state_dict(state)
    assert seen == [4, 4]


def test_a_state_that_does_not_fit_changes_nothing():
    params = make_params()
    opt = tensorgrad(params)
    run(opt, params, 2)
    good = opt.state_dict()
    cases = {"expected c64": lambda s: s.update(m=s["m"].real.clone()),
             "is missing": lambda s: s.pop("v"),
             "impossible counts": lambda s: s["counters"].fill_(-5),
             "bits set": lambda s: s["0.bitmap"].fill_(-1),
             "is no tensor": lambda s: s.update(m=3.0),
             "expected 'composite": lambda s: s.update(method=torch.tensor(list(b"adam"),
                                                                          dtype=torch.uint8))}
    for sentence, spoil in cases.items():
        bad = copy.deepcopy(good)
        spoil(bad["state"][0])
        bad["param_groups"][0]["lr"] = 17.0
        with pytest.raises(libtgrad.Error, match=sentence):
            opt.load_state_dict(bad)
        assert opt.param_groups[0]["lr"] == 1e-2
    other = make_params()
    assert same(run(opt, params, 1, 2), run(tensorgrad(other), other, 3))


def test_states_by_name_of_distributed_checkpoints():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 30)
    params = list(model.parameters())
    opt = tensorgrad(params)
    run(opt, params, 3)
    state = get_optimizer_state_dict(model, opt)
    assert opt.stats()["steps"] == 6 and "weight" in state["state"]
    twin = copy.deepcopy(model)
    others = list(twin.parameters())
    again = tensorgrad(others)
    set_optimizer_state_dict(twin, again, state)
    with torch.no_grad():
        for p, q in zip(others, params):
            p.copy_(q)
    assert same(run(again, others, 2, 3), run(opt, params, 2, 3))


# ---- groups and presets ----

def test_param_groups_pick_large_tensors():
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 5), torch.nn.Linear(8, 8),
                                torch.nn.Linear(2000, 30), torch.nn.Linear(90, 20))
    dense, compressed, matrix = libtgrad.param_groups(model, min_entries=2000, second_rank=0.1)
    assert [n for n, _ in compressed["params"]] == ["0.weight"]
    assert [n for n, _ in matrix["params"]] == ["2.weight"]  # too narrow for two factors
    assert len(dense["params"]) == 6 and compressed["second_rank"] == 0.1
    opt = libtgrad.TensorGRaD([dense, compressed, matrix], lr=1e-3)
    assert list(opt.param_groups[1]["param_names"]) == ["0.weight"]
    opt.step()
    assert set(opt.projection_errors()) == {"0.weight", "2.weight"}
    memory = opt.memory()
    assert memory["state"] < 0.4 * memory["adamw"]


def test_param_groups_leave_what_saves_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(1500, 1500), torch.nn.Linear(45, 45))
    names = [n for n, _ in libtgrad.param_groups(model)[0]["params"]]
    assert "1.weight" in names and "0.weight" not in names
    assert "1.weight" not in [n for n, _ in libtgrad.param_groups(model[1:], 1000)[0]["params"]]


def test_param_groups_save_memory_of_any_matrix():
    for shape in (3000, 10), (10, 3000), (100, 100), (2, 5000), (64, 1, 64), (3, 3, 3, 400):
        model = torch.nn.ParameterList([torch.randn(shape)])
        memory = libtgrad.TensorGRaD(libtgrad.param_groups(model)).memory()
        assert memory["state"] <= 0.6 * memory["adamw"], (shape, memory)


def test_memory_tells_workspace_from_state_and_backend():
    held = {}
    for count in 1, 3:
        weights = [torch.nn.Parameter(torch.randn(24, 24, 12, 7, dtype=torch.complex64))
                   for _ in range(count)]
        held[count] = tensorgrad(weights).memory()
    one, three = held[1], held[3]
    assert 0 < one["workspace"] < one["adamw"]  # that is two gradients
    assert three["workspace"] == one["workspace"] and three["backend"] == one["backend"] > 0
    assert 3 * one["state"] == three["state"] < 0.3 * three["adamw"]
    assert one["state"] + one["workspace"] + one["backend"] <= one["total"]


def test_presets():
    params = make_params()
    with pytest.warns(UserWarning, match="with preset 'paper' updates are 0.35 to 0.5 times as long as"):
        paper = libtgrad.TensorGRaD(params, preset="paper")
    assert paper.param_groups[0]["update_proj_gap"] == 1000
    assert not {"match_rms", "sparse_ratio", "second_rank"} & paper.param_groups[0].keys()
    other = libtgrad.TensorGRaD(params, preset="paper", match_rms=False, method="lowrank", update_proj_gap=7)
    assert other.param_groups[0]["update_proj_gap"] == 7 and other.param_groups[0]["method"] == "lowrank"
    opt = libtgrad.TensorGRaD(params, preset="neuralop", match_rms=True, min_entries=100)
    run(opt, params, 1)
    engine = opt._engines[0]
    ranks = engine.projections()["parameter 0"].ranks
    kept = 1
    for size, rank in zip((8, 8, 6, 5), ranks.dim):
        kept *= rank
    factors = sum(size * rank for size, rank in zip((8, 8, 6, 5), ranks.dim))
    assert abs(kept + factors - 0.2 * 1920) < 0.1 * 1920  # counted with their factors
    with pytest.raises(libtgrad.Error, match="preset: 'papers' is none of adamw, paper, neuralop"):
        libtgrad.TensorGRaD(params, preset="papers")


def test_methods_and_groups_keep_their_own_shares():
    params = make_params()
    first, second = [params[0]], [params[1]]
    opt = libtgrad.TensorGRaD([{"params": first}, {"params": second, "method": "structured"}], min_entries=100)
    assert [group["sparse_ratio"] for group in opt.param_groups] == [0.20, None]
    run(opt, params[:2], 1)
    alone = libtgrad.TensorGRaD([make_params()[1]], method="structured", min_entries=100)
    assert "sparse_ratio" not in alone.param_groups[0] and alone.param_groups[0]["match_rms"]
    run(alone, [alone.param_groups[0]["params"][0]], 1)
    bytes_of = [engine.projections() for engine in (opt._engines[0], alone._engines[0])]
    assert bytes_of[0]["parameter 1"].values == bytes_of[1]["parameter 0"].values
    asked = libtgrad.TensorGRaD([{"params": first, "method": "unstructured"}], sparse_ratio=0.1)
    assert asked.param_groups[0]["sparse_ratio"] == 0.1
    opt = pickle.loads(pickle.dumps(opt))
    opt.add_param_group({"params": [params[2]], "method": "galore"})
    assert opt.param_groups[2]["sparse_ratio"] is None


def test_the_page_runs():
    page = (pathlib.Path(__file__).resolve().parent.parent.parent / "docs/python.md").read_text()
    names = {}
    page = page[page.index("## The optimizer"):page.index("## Networks as PyTorch modules")]
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert names["opt"].stats()["steps"] == 4


def test_real_tensors_have_shares_of_their_own():
    def shares(**keys):
        params = [torch.nn.Parameter(torch.randn(12, 10, 8, 6, dtype=dtype))
                  for dtype in (torch.float32, torch.complex64)]
        opt = libtgrad.TensorGRaD(params, lr=1e-2, **keys)
        for param in params:
            param.grad = torch.randn_like(param)
        opt.step()
        bitmaps = [state["0.bitmap"].tolist() for state in opt.state_dict()["state"].values()]
        return [sum(bin(word & (1 << 64) - 1).count("1") for word in bitmap) / params[0].numel()
                for bitmap in bitmaps]

    assert shares() == pytest.approx([0.05, 0.20], rel=0.01)  # of single entries
    assert shares(sparse_ratio=0.3) == pytest.approx([0.3, 0.3], rel=0.01)
    assert shares(preset="paper", match_rms=True) == pytest.approx([0.05, 0.05], rel=0.01)
