"""What the optimizer refuses: an exception with a sentence, never a wrong result or a crash."""
import contextlib

import pytest

torch = pytest.importorskip("torch")

import libtgrad
from libtgrad import _torch
from torch_cases import make_params, run, same, tensorgrad


def matrix(**keys):
    return torch.nn.Parameter(torch.randn(30, 40, **keys))


def refused(opt, sentence):
    with pytest.raises(libtgrad.Error, match=sentence):
        opt.step()


def step_with(param, gradient):
    param.grad = gradient
    return tensorgrad([param])


# ---- weights ----

def test_weights_that_are_not_contiguous():
    p = torch.nn.Parameter(torch.randn(40, 30).t())
    refused(step_with(p, torch.ones(30, 40)), r"weight of parameter 0: it is not contiguous .*30x40")


def test_conjugate_and_negative_views():
    p = torch.nn.Parameter(torch.randn(30, 40, dtype=torch.complex64).conj())
    refused(step_with(p, torch.ones(30, 40, dtype=torch.complex64)), "conjugate or negative view")
    p = torch.nn.Parameter(torch._neg_view(torch.randn(30, 40)))
    refused(step_with(p, torch.ones(30, 40)), "weight of parameter 0: it is a conjugate or negative view")


def test_meta_and_integer_and_sparse_weights():
    p = matrix(device="meta")
    refused(tensorgrad([p]), "weight of parameter 0: it is on device meta; cpu and cuda are possible")
    p = torch.nn.Parameter(torch.randn(4, 4).to(torch.float8_e4m3fn))
    refused(tensorgrad([p]), "it is torch.float8_e4m3fn; float32")
    p = torch.nn.Parameter(torch.eye(30).to_sparse())
    refused(tensorgrad([p]), "weight of parameter 0: it is torch.sparse_coo")


def test_flattened_weights(tmp_path):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        from torch.distributed.fsdp import FullyShardedDataParallel
        for keeps in False, True:
            layer = FullyShardedDataParallel(torch.nn.Linear(40, 30), use_orig_params=keeps,
                                             device_id=torch.device("cpu"))
            refused(tensorgrad(layer.parameters()), ".FSDP 1. has flattened it, so that its "
                    "shape is lost; torch.distributed.fsdp.fully_shard .FSDP2. keeps it")
    finally:
        dist.destroy_process_group()


def test_more_dims_than_the_library_has():
    p = torch.nn.Parameter(torch.randn([2] * 9))
    refused(step_with(p, torch.randn([2] * 9)), "parameter 0 has the shape of 9 dimensions")


def test_weights_that_change():
    p = matrix()
    opt = step_with(p, torch.ones(30, 40))
    opt.step()
    p.grad = None
    p.data = p.data.view(40, 30)
    p.grad = torch.ones(40, 30)
    refused(opt, "weight of parameter 0: it is 40x30 float32 now; its state was made for 30x40 float32")
    p.grad = None
    p.data = torch.randn(30, 40, dtype=torch.float64)
    p.grad = torch.ones(30, 40, dtype=torch.float64)
    refused(opt, "it is 30x40 float64 now; its state was made for 30x40 float32")
    p.grad = None
    p.data = torch.zeros(30, 40)  # another place, the same kind: fine
    p.grad = torch.ones(30, 40)
    opt.step()
    assert p.detach().abs().sum() > 0


# ---- gradients ----

def test_sparse_gradients():
    p = torch.nn.Parameter(torch.randn(100, 30))
    opt = tensorgrad([p])
    torch.nn.functional.embedding(torch.tensor([1, 2]), p, sparse=True).sum().backward()
    refused(opt, "gradient of parameter 0: it is torch.sparse_coo; a dense one is needed")


def test_nothing_moves_when_one_is_refused():
    params = [*make_params(), torch.nn.Parameter(torch.ones(1024, 1024))]
    opt = tensorgrad(params, method="adam")
    run(opt, params, 1)
    before = [p.detach().clone() for p in params]
    params[2].grad = torch.eye(48, 40).to_sparse()
    refused(opt, "gradient of parameter 2")
    params[2].grad = None
    params[3].data = torch.zeros(3, 3)
    params[3].grad = torch.ones(3, 3)
    refused(opt, "weight of parameter 3: it is 3x3 float32 now")
    params[3].grad, params[3].data = None, before[3]
    assert same(before, params)


def test_nan_is_skipped_or_an_error():
    params = make_params()
    opt = tensorgrad(params)
    run(opt, params, 1)
    before = params[0].detach().clone()
    for p in params:
        p.grad = torch.ones_like(p)
    params[0].grad[0, 0, 0, 0] = torch.nan
    opt.step()
    assert torch.equal(params[0], before) and opt.stats()["skipped"] == 1
    opt.param_groups[0]["nonfinite"] = "error"
    refused(opt, "gradient of parameter 0: 1 entries are NaN or Inf")


def test_requires_grad_is_not_needed_of_a_step():
    p = matrix()
    loss = (p * p).sum()
    loss.backward(create_graph=True)  # the gradient has a graph, and requires grad
    assert p.grad.requires_grad
    opt = tensorgrad([p])
    opt.step()
    assert p.requires_grad and p.is_leaf


# ---- settings ----

@pytest.mark.parametrize("keys, sentence", [
    ({"method": "lowrank", "rank": 0.0}, "opt.rank"),
    ({"second_rank": [0.5, 0.5, 0.5]}, "opt.second_rank"),
    ({"method": "tensorgrat"}, "did you mean tensorgrad"),
    ({"sparse_ration": 0.1}, "did you mean opt.sparse_ratio"),
    ({"lr": -1.0}, "opt.learning_rate"),
    ({"betas": (0.9, 1.0)}, "opt.beta2: expected a number in"),
    ({"update_proj_gap": 0}, "opt.update_proj_gap"),
    ({"proj_type": "low_rank", "second_proj_type": "low_rank"}, "opt.second_proj_type|sparse"),
])
def test_settings(keys, sentence):
    with pytest.raises(libtgrad.Error, match=sentence):
        p = matrix()
        p.grad = torch.ones(30, 40)
        tensorgrad([p], **keys).step()


def test_groups():
    with pytest.raises(libtgrad.Error, match="param_groups: a list is no model; parameters alone go to"):
        libtgrad.param_groups([matrix()])
    with pytest.raises(libtgrad.Error, match="did you mean opt.min_entries"):
        libtgrad.param_groups(torch.nn.Linear(3, 3), min_entires=3)
    for key, value in {"in_backward": True, "max_grad_norm": 1.0, "preset": "paper"}.items():
        with pytest.raises(libtgrad.Error, match=f"{key}: it is an argument of TensorGRaD for all parameters"):
            tensorgrad([{"params": [matrix()], key: value}])
    opt = tensorgrad([matrix()])
    with pytest.raises(libtgrad.Error, match="did you mean opt.second_rank"):
        opt.add_param_group({"params": [matrix()], "secondrank": 0.1})
    assert len(opt.param_groups) == 1
    with pytest.raises(ValueError, match="more than one parameter group"):
        opt.add_param_group({"params": opt.param_groups[0]["params"]})
    with pytest.raises(libtgrad.Error, match="no trainable parameter"):
        libtgrad.param_groups(torch.nn.ReLU())
    with pytest.raises(libtgrad.Error, match="has no fno_blocks.convs"):
        libtgrad.fno_tensorgrad_param_groups(torch.nn.Linear(3, 3))


def test_threads_and_steps_in_threads():
    """Each thread has an optimizer of its own."""
    import threading
    ends = [None] * 3

    def work(i):
        params = make_params()
        ends[i] = run(tensorgrad(params), params, 4)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(ends[0], ends[1]) and same(ends[0], ends[2])


def test_tensors_on_a_gpu_that_the_library_was_not_built_for(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    with pytest.raises(libtgrad.Error, match="tensors on cuda:0: .*cuda.*TG_CUDA=ON"):
        _torch.make_context(torch.device("cuda", 0), 0)
