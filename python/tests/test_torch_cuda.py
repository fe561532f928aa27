"""The optimizer on a GPU, where there is one and the library was built for it."""
import ctypes
import gc

import pytest

torch = pytest.importorskip("torch")

from libtgrad._library import Context, c, lib, text
from torch_cases import METHODS, make_gradients, make_params, run, same, tensorgrad


def has_cuda():
    context, info = Context(), c.tg_backend_info()
    for i in range(lib.tg_backend_count()):
        context.check(lib.tg_backend_describe(context, i, ctypes.byref(info)))
        if text(info.name) == "cuda" and info.available:
            return torch.cuda.is_available()
    return False


pytestmark = pytest.mark.skipif(not has_cuda(), reason="no GPU, or a library without CUDA")


def on_gpu(params):
    return [torch.nn.Parameter(p.detach().cuda()) for p in params]


def run_on_gpu(opt, params, steps, begin=0, make=make_gradients):
    for step in range(begin, begin + steps):
        for p, g in zip(params, make([p.cpu() for p in params], step)):
            p.grad = g.cuda()
        opt.step()
    return [p.detach().cpu() for p in params]


def graded_gradients(params, step):
    """Noise that falls to a fifth along every mode: which directions are large is no matter of rounding."""
    gradients = make_gradients(params, step)
    for i, g in enumerate(gradients):
        for axis, n in enumerate(g.shape):
            fall = 0.2 ** (torch.arange(n) / (n - 1))
            gradients[i] = gradients[i] * fall.reshape([-1 if axis == d else 1 for d in range(g.dim())])
    return gradients


def near(a, b, bound=5e-3):
    return all((x - y).norm() <= bound * y.norm() for x, y in zip(a, b))


def moved_alike(a, b):
    """Apart by little of what both moved: the GPU rounds the factors of its products."""
    return all((x - y).norm() <= 0.02 * (y - p).norm() for x, y, p in zip(a, b, make_params()))


@pytest.mark.parametrize("method", METHODS)
def test_gpu_follows_cpu(method):
    params, others = make_params(), on_gpu(make_params())
    # A matrix's core is diagonal at a refresh: with a small eps Adam would step along what rounding leaves beside it.
    keys = {"method": method, "update_proj_gap": 100, "eps": 0.1}
    assert moved_alike(run_on_gpu(tensorgrad(others, **keys), others, 5, make=graded_gradients),
                       run(tensorgrad(params, **keys), params, 5, make=graded_gradients))


@pytest.mark.parametrize("precision", ["full", "half", "8bit"])
def test_two_runs_have_the_same_bits(precision):
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(32, 32, 16, 9, dtype=torch.complex64, device="cuda"))]
        ends.append(run_on_gpu(tensorgrad(params, state_precision=precision), params, 5))
    assert same(*ends)


def test_saved_on_the_gpu_loaded_on_the_cpu():
    others = on_gpu(make_params())
    opt = tensorgrad(others, update_proj_gap=100)
    run_on_gpu(opt, others, 3)
    params = [torch.nn.Parameter(p.detach().cpu()) for p in others]
    again = tensorgrad(params)
    again.load_state_dict(opt.state_dict())
    assert near(run(again, params, 3, 3), run_on_gpu(opt, others, 3, 3), 2e-3)


def test_parameters_that_move_take_their_state_along():
    params, others = make_params(), make_params()
    opt, moving = tensorgrad(params, update_proj_gap=100), tensorgrad(others, update_proj_gap=100)
    run(opt, params, 2)
    run(moving, others, 2)
    for p in others:
        p.grad = None
        p.data = p.data.cuda()
    assert near(run_on_gpu(moving, others, 2, 2), run(opt, params, 2, 2), 2e-3)


def test_state_is_in_the_memory_of_torch():
    p = torch.nn.Parameter(torch.zeros(48, 48, 32, 17, dtype=torch.complex64, device="cuda"))
    before = torch.cuda.memory_allocated()
    opt = tensorgrad([p])
    held = opt.memory()
    grown = torch.cuda.memory_allocated() - before
    assert held["total"] <= grown <= 1.3 * held["total"] + (16 << 20)  # blocks of 2 MB
    del opt
    gc.collect()
    assert torch.cuda.memory_allocated() <= before


def test_other_streams_wait_for_each_other():
    params, others = on_gpu(make_params()), on_gpu(make_params())
    expected = run_on_gpu(tensorgrad(params), params, 6)
    opt, side = tensorgrad(others), torch.cuda.Stream()
    run_on_gpu(opt, others, 2)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run_on_gpu(opt, others, 2, 2)
    torch.cuda.current_stream().wait_stream(side)
    assert same(run_on_gpu(opt, others, 2, 4), expected)


def test_the_largest_gradient_goes_ahead(monkeypatch):
    """It is projected while the host looks at all of them: as if it were not, to the bit."""
    from libtgrad import _engine
    ends = []
    for goes in True, False:
        if not goes:
            monkeypatch.setattr(_engine.Engine, "project_ahead", lambda self: None)
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(9, device="cuda")),
                  torch.nn.Parameter(torch.randn(32, 32, 64, 33, dtype=torch.complex64, device="cuda"))]
        opt = tensorgrad(params, update_proj_gap=4)
        for step in range(6):
            for p in params:
                p.grad = torch.randn_like(p)
            params[1].grad[3, 2, 1, 0] = torch.nan if step == 2 else 1.0
            if step == 3:
                params[0].grad = torch.ones(9).to_sparse().cuda()
                with pytest.raises(RuntimeError, match="gradient of parameter 0"):
                    opt.step()
                params[0].grad = None
            opt.step()
        ends.append([p.detach().cpu() for p in params])
        assert opt.stats()["skipped"] == 1 and opt.stats()["steps"] == 10
    assert same(*ends)


def test_in_backward_with_clipping_and_a_scaler():
    from test_torch_backward import Net, batches, loss_of, optimizer, weights
    nets = [Net(), Net().cuda()]
    ends = []
    for net in nets:
        opt = optimizer(net, in_backward=True, max_grad_norm=0.1, update_proj_gap=100)
        scaler = torch.amp.GradScaler(net.last.bias.device.type, init_scale=256.0)
        for x, y in batches(4):
            device = net.last.bias.device
            scaler.scale(loss_of(net, (x.to(device), y.to(device)))).backward()
            scaler.step(opt)
            scaler.update()
        ends.append([w.cpu() for w in weights(net)])
    assert near(ends[1], ends[0])


def test_memory_that_is_not_there():
    import libtgrad
    p = torch.nn.Parameter(torch.empty(1, device="cuda").expand(1 << 20, 1 << 20))
    with pytest.raises(libtgrad.Error, match="not contiguous"):
        tensorgrad([p]).memory()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - (300 << 20), dtype=torch.uint8, device="cuda")
    try:
        p = torch.nn.Parameter(torch.empty(200 << 18, device="cuda"))
        with pytest.raises(libtgrad.Error, match="memory"):
            tensorgrad([p], method="adam").memory()
    finally:
        del hog
