"""Modules of the library in PyTorch: numbers and names of neuraloperator's, and all that autograd, the
compiler and people do to modules."""
import copy
import io
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

import libtgrad  # noqa: E402
from libtgrad import nn_ops  # noqa: E402

from nn_cases import difference, gradients, make, small  # noqa: E402


def doubled(model, **keys):
    """A small f64 network, and an input."""
    return model.double(), torch.randn(2, 1, 6, 5, dtype=torch.float64, **keys)


# ---- gradients ----

def test_gradcheck():
    for arguments in ({}, {"norm": "group_norm", "channel_mlp_skip": "linear"}, {"factorization": "tucker"}):
        model, x = doubled(make((4, 3), 1, 2, 3, **arguments), requires_grad=True)
        assert torch.autograd.gradcheck(lambda t, *_: model(t), (x, *model.parameters()))


def test_several_calls_before_a_backward():
    model, x = small()
    model(x).sum().backward()
    alone = gradients(model)
    (model(x).sum() + model(0.5 * x).sum()).backward()
    both = gradients(model)
    model(0.5 * x).sum().backward()
    assert difference(both, alone + gradients(model)) < 1e-6


def test_a_graph_can_be_used_twice():
    model, x = small()
    y = model(x)
    y.sum().backward(retain_graph=True)
    first = gradients(model)
    y.sum().backward(retain_graph=True)
    assert torch.equal(first, gradients(model))
    (2 * y).sum().backward()
    assert difference(gradients(model), 2 * first) < 1e-6


def test_gradients_of_the_input_alone_and_of_some_weights():
    model, x = small()
    x.requires_grad_()
    model(x).square().sum().backward()
    name = "fno_blocks.convs.1.weight.tensor"
    of_input, of_weight = x.grad.clone(), model.get_parameter(name).grad.clone()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    x.grad = None
    model(x).square().sum().backward()
    assert torch.equal(x.grad, of_input)
    model.zero_grad()
    model.get_parameter(name).requires_grad_()
    model(x.detach()).square().sum().backward()
    assert torch.equal(model.get_parameter(name).grad, of_weight)
    assert model.get_parameter("lifting.fcs.0.weight").grad is None


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint
    model, x = small()
    x.requires_grad_()
    model(x).square().sum().backward()
    expected, of_input = gradients(model), x.grad.clone()
    for use_reentrant in (False, True):
        x.grad = None
        checkpoint(model, x, use_reentrant=use_reentrant).square().sum().backward()
        assert torch.equal(gradients(model), expected) and torch.equal(x.grad, of_input)


def test_checkpoint_frees_the_activations():
    from torch.utils.checkpoint import checkpoint
    model, x = small()
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or len(held), lambda i: held[i]):
        y = checkpoint(model, x, use_reentrant=False)
    assert y.requires_grad and not any(tensor.dtype == torch.uint8 for tensor in held)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or len(held), lambda i: held[i]):
        model(x)
    assert any(tensor.dtype == torch.uint8 for tensor in held)


def test_saved_tensors_can_be_moved_away():
    model, x = small()
    model(x).square().sum().backward()
    expected = gradients(model)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        y = model(x)
    y.square().sum().backward()
    assert torch.equal(gradients(model), expected)


def test_second_derivatives_are_refused():
    model, x = small()
    x.requires_grad_()
    gradient, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(libtgrad.Error, match="second derivatives"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("transform", [
    lambda f, x: torch.func.grad(lambda t: f(t).sum())(x), lambda f, x: torch.func.vmap(lambda t: f(t[None]))(x),
    lambda f, x: torch.func.jvp(f, (x,), (x,)), lambda f, x: torch.func.jacrev(f)(x)])
def test_transforms_are_refused(transform):
    model, x = small()
    with pytest.raises(libtgrad.Error, match="torch.func"):
        transform(model, x)


def test_forward_mode_derivatives_are_refused():
    from torch.autograd import forward_ad
    model, x = small()
    with forward_ad.dual_level(), torch.no_grad():
        assert torch.isfinite(model(x)).all()
        with pytest.raises(libtgrad.Error, match="forward-mode derivatives"):
            model(forward_ad.make_dual(x, x))


def test_weights_changed_before_backward_are_detected():
    model, x = small()
    y = model(x)
    with torch.no_grad():
        model.get_parameter("lifting.fcs.0.weight").add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_threads_take_turns():
    model, x = small()
    model(x).sum().backward()
    expected, found = gradients(model), []

    def work():
        mine = copy.deepcopy(model)
        for _ in range(5):
            mine(x).sum().backward()
            found.append(gradients(mine))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15 and all(torch.equal(one, expected) for one in found)


# ---- sizes and layouts ----

def test_batches_and_grids_vary_and_programs_are_dropped():
    model, _ = small()
    with torch.no_grad():
        for size in range(1, nn_ops.MAX_FUNCTIONS + 8):
            x = torch.randn(size, 2, 12, 10 + size % 3)
            whole = model(x)
            assert difference(model(x[:1]), whole[:1]) < 1e-5
    with nn_ops.place_of(x) as place:
        assert len(place.functions) == nn_ops.MAX_FUNCTIONS


@pytest.mark.parametrize("change", [
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    lambda x: torch.cat([torch.zeros(1), x.flatten()])[1:].view(x.shape),  # at an odd address
    lambda x: x.double().float().expand(2, *x.shape)[1],
])
def test_any_layout(change):
    model, x = small()
    x.requires_grad_()
    expected = model(x)
    expected.square().sum().backward()
    of_input, of_weights = x.grad.clone(), gradients(model)
    x.grad = None
    y = model(change(x))
    y.square().sum().backward()
    assert torch.equal(y, expected) and torch.equal(x.grad, of_input)
    assert torch.equal(gradients(model), of_weights)


def test_weights_of_any_layout():
    model, x = small()
    expected = model(x)
    for name, parameter in list(model.named_parameters()):
        whole = torch.zeros(parameter.numel() + 1, dtype=parameter.dtype)
        parameter.data = whole[1:].view(parameter.shape).copy_(parameter.data)
    assert torch.equal(model(x), expected)


def test_weights_that_change_at_their_address():
    model, x = small()
    weight = model.get_parameter("fno_blocks.convs.0.weight.tensor")
    before = model(x)
    weight.data = weight.data.transpose(0, 1)
    found = model(x)
    weight.data = weight.data.contiguous()
    assert torch.equal(found, model(x)) and not torch.equal(found, before)
    weight.data = weight.data[:4]
    with pytest.raises(libtgrad.Error, match="it is 4x8x8x4 complex64; 8x8x8x4 complex64"):
        model(x)


@pytest.mark.parametrize("x, sentence", [
    (torch.zeros(2, 3, 8, 8), "2 channels"),
    (torch.zeros(2, 2, 8), "2 dimensions of the grid"),
    (torch.zeros(2, 2, 8, 8, dtype=torch.float64), "torch.float64"),
    (torch.zeros(2, 2, 8, 8, dtype=torch.complex64), "torch.complex64"),
    (torch.zeros(2, 2, 8, 8, dtype=torch.bfloat16), "torch.bfloat16"),
    (torch.zeros(2, 2, 8, 8, device="meta"), "meta"),
    (torch.zeros(0, 2, 8, 8), "batch"),
])
def test_inputs_that_cannot_be_used(x, sentence):
    model, _ = small()
    with pytest.raises(libtgrad.Error, match=sentence):
        model(x)


def test_an_input_of_numpy():
    model, x = small()
    with pytest.raises(libtgrad.Error, match="it is a ndarray; a torch.Tensor is needed"):
        model(x.numpy())


def test_weights_that_cannot_be_used():
    model, x = small()
    name = "fno_blocks.convs.0.weight.tensor"
    weights = {**dict(model.named_parameters()), name: torch.zeros(3, 3, dtype=torch.complex64)}
    with pytest.raises(libtgrad.Error, match=f"{name}: it is 3x3 complex64; 8x8x8x4 complex64"):
        torch.func.functional_call(model, weights, (x,))


# ---- the module ----

def test_modes_and_grad_mode():
    model, x = small()
    y = model(x)
    assert y.requires_grad
    with torch.no_grad():
        assert torch.equal(model(x), y) and not model(x).requires_grad
        assert torch.equal(model.eval()(x), y)
    with torch.inference_mode():
        assert torch.equal(model(x), y)


def test_dropout():
    model, x = small(channel_mlp_dropout=0.5)
    torch.manual_seed(1)
    first = model(x)
    assert not torch.equal(model(x), first)
    torch.manual_seed(1)
    assert torch.equal(model(x), first)
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))
        assert torch.equal(model.eval()(x), model(x))


def test_random_weights_follow_the_seed():
    torch.manual_seed(3)
    first = make((8, 6), 2, 3, 8)
    second = make((8, 6), 2, 3, 8)
    torch.manual_seed(3)
    third = make((8, 6), 2, 3, 8)
    weight = "fno_blocks.convs.0.weight.tensor"
    assert not torch.equal(first.get_parameter(weight), second.get_parameter(weight))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), third.parameters()))


def test_copies_and_files():
    model, x = small()
    expected = model(x)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x), expected)
        copied(x).sum().backward()
        assert all(parameter.grad is not None for parameter in copied.parameters())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other, _ = small(seed=5)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), expected)


def test_a_state_of_other_shapes_changes_nothing():
    model, _ = small()
    before = copy.deepcopy(model.state_dict())
    other = make((8, 4), 2, 3, 8)
    with pytest.raises(libtgrad.Error, match="fno_blocks.convs.0.weight.tensor: it is 8x8x8x3 complex64"):
        model.load_state_dict(other.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_memory_formats_and_shared_memory():
    model, x = small()
    expected = model(x)
    assert torch.equal(model.to(memory_format=torch.channels_last)(x), expected)
    assert all(parameter.is_shared() for parameter in model.share_memory().parameters())


def test_precision_of_the_module():
    model, x = small()
    double = copy.deepcopy(model).double()
    assert {p.dtype for p in double.parameters()} == {torch.float64, torch.complex128}
    assert difference(double(x.double()), model(x).double()) < 1e-6
    back = copy.deepcopy(double).to(torch.float32)
    assert torch.equal(back(x), model(x))
    for convert in (lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to(torch.float16)):
        with pytest.raises(libtgrad.Error, match="float32 and float64"):
            convert(copy.deepcopy(model))
    parent = torch.nn.Sequential(copy.deepcopy(model)).double()
    assert torch.equal(parent(x.double()), double(x.double()))


def test_meta_and_empty():
    with torch.device("meta"):
        model = make((8, 6), 2, 3, 8)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu").reset_parameters()
    assert torch.isfinite(model(torch.randn(1, 2, 12, 12))).all()


def test_autocast_keeps_less():
    model, x = small(hidden_channels=32)
    expected = model(x)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        model(x)
        full, sizes = max(sizes), []
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x.bfloat16().float())
    assert max(sizes) < 0.7 * full and y.dtype is torch.float32
    y.square().sum().backward()
    found = gradients(model)
    expected.square().sum().backward()
    assert 0 < difference(found, gradients(model)) < 0.1
    with torch.autocast("cpu", torch.bfloat16):  # nothing to make smaller
        assert model.double()(x).dtype is torch.float64
        assert small(fno_block_precision="mixed")[0](x).dtype is torch.float32


@pytest.mark.parametrize("arguments, sentence", [
    ({"resolution_scaling_factor": 2}, "resolution_scaling_factor"),
    ({"max_n_modes": (16, 16)}, "max_n_modes"),
    ({"norm": "ada_in"}, "norm"),
    ({"use_channel_mlp": False}, "use_channel_mlp"),
    ({"non_linearity": torch.nn.functional.elu}, "non_linearity"),
    ({"decomposition_kwargs": {"a": 1}}, "decomposition_kwargs"),
    ({"conv_module": torch.nn.Conv2d}, "conv_module"),
    ({"fno_skip": None}, "fno_skip"),
    ({"hidden_channels": 0}, "hidden_channels"),
    ({"positional_embedding": "fourier"}, "positional_embedding"),
])
def test_arguments_without_a_counterpart(arguments, sentence):
    with pytest.raises(libtgrad.Error, match=sentence):
        make(**{"n_modes": (8, 6), "in_channels": 1, "out_channels": 1, "hidden_channels": 4, **arguments})


def test_memory_saving_arguments():
    torch.manual_seed(0)
    x, expected = torch.randn(3, 2, 16, 12), None
    for arguments in ({}, {"activation_checkpoint": "block"}, {"activation_checkpoint": "minimal"},
                      {"saved_precision": "bf16"}):
        model, _ = small(**arguments)
        model(x).square().sum().backward()
        found = gradients(model)
        expected = found if expected is None else expected
        assert difference(found, expected) < (1e-2 if "saved_precision" in arguments else 1e-6)
