"""Modules of the library on a GPU, where there is one and the library was built for it."""
import copy
import gc

import pytest

torch = pytest.importorskip("torch")
import torch.utils.checkpoint  # noqa: E402

import libtgrad  # noqa: E402
from nn_cases import difference, gradients, make, small  # noqa: E402
from test_nn_backward import formed, optimizer, trained, weights  # noqa: E402, F401
from test_torch_cuda import has_cuda  # noqa: E402

pytestmark = pytest.mark.skipif(not has_cuda(), reason="no GPU, or a library without CUDA")


def step(model, x, inner=None):
    """The output, and the gradients of the input and all weights (of `inner`), on the host."""
    x = x.detach().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return [y.detach().cpu(), x.grad.cpu(), gradients(inner or model).cpu()]


def replayed(model, x, numbers, kept=None):
    """The last of several steps on the same tensors with new numbers in them. `kept` takes the memory of every
    step, so that none is like another."""
    for values in numbers:
        with torch.no_grad():
            x.copy_(values)
        for tensor in (x, *model.parameters()):
            tensor.grad = None
        y = model(x)
        y.square().sum().backward()
        if kept is not None:
            kept += [y, *(tensor.grad for tensor in (x, *model.parameters()))]
    torch.cuda.synchronize()
    return [y.detach().clone(), x.grad.clone(), gradients(model)]


@pytest.mark.parametrize("modes, grid", [((12,), (32,)), ((8, 6), (16, 12)), ((4, 4, 6), (8, 6, 10))])
def test_numbers_are_those_of_the_cpu(modes, grid):
    torch.manual_seed(0)
    model, x = make(modes, 2, 3, 16), torch.randn(3, 2, *grid)
    expected = step(model, x)
    for found, value in zip(step(copy.deepcopy(model).cuda(), x.cuda()), expected):
        assert difference(found, value) < 1e-5
    for found, value in zip(step(copy.deepcopy(model).double().cuda(), x.double().cuda()), expected):
        assert difference(found.float(), value) < 1e-5


def test_replays_have_the_same_bits():
    model, x = small()
    model, numbers = model.cuda(), [torch.randn(3, 2, 16, 12) for _ in range(6)]
    expected = replayed(copy.deepcopy(model), x.cuda().requires_grad_(), numbers, kept=[])
    x = x.cuda().requires_grad_()
    for found, value in zip(replayed(model, x, numbers), expected):
        assert torch.equal(found, value)
    with torch.profiler.profile() as profile:
        replayed(model, x, numbers)
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls.get("cudaGraphLaunch", 0) >= 4


def test_two_forwards_before_their_backwards():
    model, x = small()
    inputs = x, torch.randn(2, 2, 16, 12)

    def step(model, inputs):
        ys = [model(x) for x in inputs]
        sum(y.square().sum() for y in ys).backward()
        return [*(y.detach().cpu() for y in ys), gradients(model).cpu()]

    expected = step(model, inputs)
    model, inputs = model.cuda(), [x.cuda() for x in inputs]
    for _ in range(5):
        for found, value in zip(step(model, inputs), expected):
            assert difference(found, value) < 1e-5


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    model, x = small()
    expected, model, x = step(model, x), model.cuda(), x.cuda()
    for _ in range(5):
        found = step(lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant), x, model)
        for a, b in zip(found, expected):
            assert difference(a, b) < 1e-5


def test_second_backward_through_a_graph():
    model, x = small()
    expected, model, x = step(model, x), model.cuda(), x.cuda().requires_grad_()
    for _ in range(4):
        loss = model(x).square().sum()
        for keeps in (True, True, False):
            x.grad = None
            loss.backward(retain_graph=keeps)
            assert difference(x.grad.cpu(), expected[1]) < 1e-5
            assert difference(gradients(model).cpu(), expected[2]) < 1e-5


def test_captured_by_the_caller():
    model, x = small()
    numbers = torch.randn(3, 2, 16, 12)
    expected, model = step(model, numbers), model.cuda()
    stream, x = torch.cuda.Stream(), x.cuda().requires_grad_()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(libtgrad.Error, match="has not run on its stream"):
        with torch.cuda.graph(graph, stream=stream):
            model(x)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            x.grad = None
            model(x).square().sum().backward()
            gradients(model)
    torch.cuda.synchronize()
    x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = model(x)
        y.square().sum().backward()
    for _ in range(2):
        with torch.no_grad():
            x.copy_(numbers)
        graph.replay()
    torch.cuda.synchronize()
    for found, value in zip([y.detach().cpu(), x.grad.cpu(), gradients(model).cpu()], expected):
        assert difference(found, value) < 1e-5


def test_frozen_weights():
    model, x = small()
    for parameter in list(model.parameters())[::2]:
        parameter.requires_grad_(False)

    def step(model, x):
        model(x).square().sum().backward()
        found = [parameter.grad.cpu() for parameter in model.parameters() if parameter.requires_grad]
        model.zero_grad()
        return found

    expected, model, x = step(model, x), model.cuda(), x.cuda()
    for _ in range(4):
        for found, value in zip(step(model, x), expected, strict=True):
            assert difference(found, value) < 1e-5


def test_streams():
    model, x = small()
    model, x = model.cuda(), x.cuda()
    expected = step(model, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = step(model, x)
    torch.cuda.synchronize()
    for a, b in zip(found, expected):
        assert difference(a, b) < 1e-6


def test_memory_is_of_torchs_allocator():
    model, x = small(hidden_channels=64)
    model, x = model.cuda(), x.cuda()
    model(x)  # prepares the program, which stays
    before = torch.cuda.memory_allocated()
    y = model(x)
    assert torch.cuda.memory_allocated() > before
    del y
    assert torch.cuda.memory_allocated() == before


def test_compiled_and_autocast():
    model, x = small()
    model, x = model.cuda(), x.cuda()
    expected = step(model, x)
    torch._dynamo.reset()
    compiled = torch.compile(lambda value: model(value), fullgraph=True, backend="aot_eager")
    y = compiled(x)
    y.square().sum().backward()
    assert difference(y.detach().cpu(), expected[0]) < 1e-6
    assert difference(gradients(model).cpu(), expected[2]) < 1e-6
    with torch.autocast("cuda", torch.bfloat16):
        y = model(x)
    assert y.dtype is torch.float32 and difference(y.detach().cpu(), expected[0]) < 1e-2


def test_devices_must_agree():
    model, x = small()
    with pytest.raises(libtgrad.Error, match="x: it is on cuda:0, a weight on cpu"):
        model(x.cuda())


def test_factored_gradients_make_the_same_updates(formed):  # noqa: F811
    ends = []
    for in_backward in (False, True):
        torch.manual_seed(0)
        model = make((8, 6), 2, 3, 16).cuda()
        opt, begin = optimizer(model, in_backward, eps=1e-3), weights(model)
        ends.append(trained(model, opt, lambda model, x: model(x.cuda()).square().mean(), steps=6) - begin)
    assert difference(ends[1], ends[0]) < 2e-2 and not formed


def test_factored_gradients_take_no_memory():
    peaks = []
    for in_backward in (False, True):
        gc.collect()
        held = torch.cuda.memory_allocated()
        model, x = make((32, 32), 2, 3, 64).cuda(), torch.randn(2, 2, 64, 64, device="cuda")
        opt = optimizer(model, in_backward)
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()
        peaks.append(torch.cuda.max_memory_allocated() - held)
        del model, opt
    gradient = 64 * 64 * 32 * 17 * 8
    assert peaks[1] < peaks[0] - gradient
