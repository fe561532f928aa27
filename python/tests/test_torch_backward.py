"""Updates during the backward pass, alone and with accumulation, clipping, scaling and processes."""
import copy
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

import libtgrad
from torch_cases import make_params, same, tensorgrad

HERE = pathlib.Path(__file__).resolve().parent


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.spectral = torch.nn.Parameter(torch.randn(12, 12, 9, dtype=torch.complex64) / 12)
        self.linear = torch.nn.Linear(12, 30)
        self.last = torch.nn.Linear(30, 12)

    def forward(self, x):  # (batch, 12, 16)
        y = torch.fft.irfft(torch.einsum("bik,iok->bok", torch.fft.rfft(x), self.spectral), n=16)
        return self.last(torch.tanh(self.linear(y.transpose(1, 2)))).transpose(1, 2)


def batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, 12, 16, generator=generator), torch.randn(4, 12, 16, generator=generator))
            for _ in range(count)]


def loss_of(net, batch):
    return (net(batch[0]) - batch[1]).square().mean()


def optimizer(net, method=None, **keys):
    chosen = {"method": method} if method else {}
    return tensorgrad(libtgrad.param_groups(net, min_entries=100, **chosen), **keys)


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def near(a, b, bound=1e-4):
    return all((x - y).norm() <= bound * y.norm() for x, y in zip(a, b))


def test_same_bits_as_updates_after_the_pass():
    nets, ends = [Net(), Net()], []
    for net, in_backward in zip(nets, (False, True)):
        opt = optimizer(net, in_backward=in_backward)
        for batch in batches(7):
            opt.zero_grad()
            loss_of(net, batch).backward()
            if in_backward:
                assert all(p.grad is None for p in net.parameters())
            opt.step()
        ends.append(weights(net))
        assert opt.stats()["steps"] == 7 * 5
    assert same(*ends)


def test_one_gradient_is_alive_at_a_time():
    alive, counts = set(), []

    def count(param):
        alive.add(weakref.ref(param.grad, alive.discard))
        counts.append(len(alive))

    layers = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(6)])
    for layer in layers:  # before the hook of the optimizer
        layer.weight.register_post_accumulate_grad_hook(count)
    opt = tensorgrad(layers.parameters(), in_backward=True)
    layers(torch.randn(3, 40)).square().sum().backward()
    opt.step()
    assert counts == [1] * 6


def test_accumulation_is_that_of_one_large_batch():
    whole, parts = Net(), Net()
    opt_whole, opt_parts = optimizer(whole), optimizer(parts, in_backward=True, accumulate=True)
    data = batches(12)
    for step in range(4):
        micro = data[3 * step:3 * step + 3]
        opt_whole.zero_grad()
        for batch in micro:
            (loss_of(whole, batch) / 3).backward()
        opt_whole.step()
        for batch in micro:
            (loss_of(parts, batch) / 3).backward()
        opt_parts.step()
    assert near(weights(parts), weights(whole))
    assert opt_parts.stats() == opt_whole.stats()


def test_clipping_by_the_norm_of_the_sums():
    clipped, whole = Net(), Net()
    opt = optimizer(clipped, method="adam", in_backward=True, max_grad_norm=1e-3)
    opt_whole = optimizer(whole, method="adam")
    for batch in batches(4):
        loss_of(clipped, batch).backward()
        opt.step()
        opt_whole.zero_grad()
        loss_of(whole, batch).backward()
        norm = torch.nn.utils.clip_grad_norm_(whole.parameters(), 1e-3)
        assert abs(opt.grad_norm.item() - norm.item()) < 1e-4 * norm
        opt_whole.step()
    assert near(weights(clipped), weights(whole))


def test_grad_scaler_and_a_global_skip():
    scaled, plain = Net(), Net()
    opt = optimizer(scaled, in_backward=True, accumulate=True)
    opt_plain = optimizer(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step, batch in enumerate(batches(5)):
        loss = scaler.scale(loss_of(scaled, batch))
        before = weights(scaled)
        if step == 2:  # one parameter overflows, none is updated
            handle = scaled.last.bias.register_hook(lambda g: g * torch.inf)
        loss.backward()
        scaler.step(opt)
        scaler.update()
        if step == 2:
            handle.remove()
            assert same(before, weights(scaled)) and scaler.get_scale() == 512.0
            continue
        opt_plain.zero_grad()
        loss_of(plain, batch).backward()
        opt_plain.step()
    assert near(weights(scaled), weights(plain))


def test_grad_scaler_needs_accumulation():
    net = Net()
    opt = optimizer(net, in_backward=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(net, batches(1)[0]))
    with pytest.raises(libtgrad.Error, match="accumulate=True makes updates wait for it"):
        scaler.step(opt)


def test_rates_change_between_passes():
    nets = [Net(), Net()]
    ends = []
    for net, in_backward in zip(nets, (False, True)):
        opt = optimizer(net, in_backward=in_backward)
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 2, 0.1)
        for batch in batches(5):
            loss_of(net, batch).backward()
            opt.step()
            opt.zero_grad()
            scheduler.step()
        ends.append(weights(net))
    assert same(*ends)


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_layer_that_thaws_is_trained(accumulate):
    net, batch = Net(), batches(1)[0]
    net.last.requires_grad_(False)
    opt = tensorgrad(net.parameters(), in_backward=True, accumulate=accumulate)
    for thawed, frozen in ((net.linear, net.last), (net.last, net.linear), (net.last, net.linear)):
        thawed.requires_grad_(True)
        frozen.requires_grad_(False)
        before = thawed.weight.detach().clone(), frozen.weight.detach().clone()
        loss_of(net, batch).backward()
        opt.step()
        assert thawed.weight.grad is None and not torch.equal(thawed.weight, before[0])
        assert torch.equal(frozen.weight, before[1])


@pytest.mark.parametrize("keys", [{}, {"in_backward": True}, {"in_backward": True, "accumulate": True}])
def test_autograd_knows_that_weights_have_changed(keys):
    net = Net()
    opt = optimizer(net, **keys)
    loss = loss_of(net, batches(1)[0])
    loss.backward(retain_graph=True)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_zero_grad_drops_what_was_accumulated():
    nets, ends = [Net(), Net()], []
    for net, fails in zip(nets, (False, True)):
        opt = optimizer(net, in_backward=True, accumulate=True, max_grad_norm=1.0)
        assert opt.grad_norm is None
        for step, batch in enumerate(batches(5)):
            if fails and step in (0, 2):  # a step that refreshes, and one with compressed sums
                handle = net.spectral.register_hook(lambda g: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    loss_of(net, batch).backward()
                handle.remove()
            opt.zero_grad()
            loss_of(net, batch).backward()
            opt.step()
        ends.append(weights(net))
    assert same(*ends)


def test_sums_go_to_the_memory_that_a_weight_has_now():
    p = torch.nn.Parameter(torch.ones(40, 50))
    opt = tensorgrad([p], in_backward=True, accumulate=True)
    p.square().sum().backward()
    old = p.data
    p.data = old.clone()
    opt.step()
    assert torch.equal(old, torch.ones(40, 50)) and not torch.equal(p.data, old)


def test_a_shared_weight_is_updated_once():
    layer = torch.nn.Linear(40, 40)
    opt = tensorgrad(layer.parameters(), in_backward=True)
    layer(layer(torch.randn(3, 40))).square().sum().backward()
    opt.step()
    assert opt.stats()["steps"] == 2


def test_states_of_sums_are_saved_after_they_are_applied():
    net = Net()
    opt = optimizer(net, in_backward=True, accumulate=True)
    loss_of(net, batches(1)[0]).backward()
    with pytest.raises(libtgrad.Error, match="has accumulated gradients; save after they are applied"):
        opt.state_dict()
    opt.step()
    twin = copy.deepcopy(opt)
    assert twin._options == opt._options and twin.state_dict()["state"]


def test_optimizers_that_are_gone_let_go():
    net = Net()
    opt = optimizer(net, in_backward=True)
    reference = weakref.ref(opt)
    loss_of(net, batches(1)[0]).backward()
    del opt
    gc.collect()
    assert reference() is None
    loss_of(net, batches(1)[0]).backward()  # its hooks do nothing now
    assert net.last.bias.grad is not None


def test_wrong_combinations():
    for keys in {"accumulate": True}, {"max_grad_norm": 1.0}:
        with pytest.raises(libtgrad.Error, match="are for in_backward=True"):
            tensorgrad(make_params(), **keys)
    with pytest.raises(libtgrad.Error, match="max_grad_norm: -1; a number > 0 is needed"):
        tensorgrad(make_params(), in_backward=True, max_grad_norm=-1)


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_ddp_averages_too_late(process_group):
    net = Net()
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    for keys in {}, {"accumulate": True}:
        opt = optimizer(net, in_backward=True, **keys)
        with pytest.raises(libtgrad.Error, match=r"DistributedDataParallel averages .* call opt.distributed\(\)"):
            loss_of(ddp, batches(1)[0]).backward()
        del opt
    other = Net()  # which it does not have
    opt = optimizer(other, in_backward=True)
    loss_of(other, batches(1)[0]).backward()
    opt.step()


def test_distributed_after_a_state_was_loaded(process_group):
    net, data = Net(), batches(4)
    opt = optimizer(net)
    for batch in data[:2]:
        opt.zero_grad()
        loss_of(net, batch).backward()
        opt.step()
    twin = copy.deepcopy(net)
    again = optimizer(twin)
    again.load_state_dict(opt.state_dict())
    again.distributed()
    for batch in data[2:]:
        for model, optim in (net, opt), (twin, again):
            optim.zero_grad()
            loss_of(model, batch).backward()
            optim.step()
    assert near(weights(twin), weights(net)) and again.stats() == opt.stats()


def test_copies_are_distributed_too(process_group, monkeypatch):
    net, batch, averaged = Net(), batches(1)[0], []
    opt = optimizer(net).distributed()
    reduce = torch.distributed.all_reduce
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *a, **k: averaged.append(1) or reduce(*a, **k))
    for copied in copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair)):
        twin, again = copied((net, opt))
        loss_of(twin, batch).backward()
        if copied is not copy.deepcopy:
            with pytest.raises(libtgrad.Error, match=r"call opt.distributed\(\) again"):
                again.step()
            again.distributed()
        averaged.clear()
        again.step()
        assert averaged and again.stats()["steps"] == 5


def test_processes_with_accumulation_and_clipping(tmp_path):
    """Two processes with halves of every batch have the same bits, and the weights of one."""
    from distributed_worker import train
    processes = [subprocess.Popen([sys.executable, HERE / "distributed_worker.py", str(rank), tmp_path],
                                  env={**os.environ, "OMP_NUM_THREADS": "1"},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for rank in range(2)]
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    ends = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for in_backward in False, True:
        assert same(ends[0][in_backward], ends[1][in_backward])
        assert near(ends[0][in_backward], train(None, in_backward), 2e-3)
    assert same(ends[0]["scaled"], ends[1]["scaled"]) and float(ends[0]["scaled"][-1]) == 32.0
    assert all(torch.isfinite(part).all() for part in ends[0]["scaled"])


@pytest.mark.parametrize("keys", [{}, {"accumulate": True}])
def test_a_distributed_checkpoint_in_a_new_process(keys, tmp_path):
    """It is read into a state that is there, which torch makes by a step with gradients of zero."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
    nets = [torch.nn.Linear(48, 40), torch.nn.Linear(48, 40)]
    opts = [tensorgrad(net.named_parameters(), in_backward=True, **keys) for net in nets]

    def train(net, opt, begin, end):
        for step in range(begin, end):
            net(torch.randn(4, 48, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            opt.step()

    train(nets[0], opts[0], 0, 2)
    checkpoint.save({"opt": get_optimizer_state_dict(nets[0], opts[0])}, checkpoint_id=tmp_path)
    state = {"opt": get_optimizer_state_dict(nets[1], opts[1])}
    checkpoint.load(state, checkpoint_id=tmp_path)
    nets[1].load_state_dict(nets[0].state_dict())
    set_optimizer_state_dict(nets[1], opts[1], state["opt"])
    for net, opt in zip(nets, opts):
        train(net, opt, 2, 6)
    assert same(nets[0].parameters(), nets[1].parameters())
