"""One of four processes that train sharded models: RANK FOLDER. Meshes of 1, 2 and 4 ranks take turns."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_optimizer_state_dict,
                                                     set_optimizer_state_dict)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import libtgrad

COUNTS = (1, 2, 4)
CASES = [{"method": method} for method in ["adam", "lowrank", "galore", "structured", "unstructured"]]
CASES += [{}, {"state_precision": "8bit"}, {"rule": "lion"}, {"preset": "paper"}]
CASES += [{"in_backward": True}, {"in_backward": True, "accumulate": True}]


def draw(seed, *shape, dtype=torch.float32):
    return torch.nn.Parameter(torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)))


class Spectral(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = draw(0, 7, 9, 24, 16, dtype=torch.complex64)

    def forward(self, x):
        return torch.einsum("bi,ioxy->bo", x.to(torch.complex64), self.weight).abs() / 40


class Net(torch.nn.Module):
    """Weights of 7, 30, 2 and 9 rows: shards are uneven, and of four some are empty."""

    def __init__(self):
        super().__init__()
        self.spectral = Spectral()
        self.matrix, self.narrow, self.bias = draw(1, 30, 40), draw(2, 2, 300), draw(3, 9)

    def forward(self, x):
        y = (self.spectral(x[:, :7]) + self.bias).square().mean()
        z = torch.tanh(x[:, 7:] @ self.matrix / 6).square().mean()
        return y + z + torch.tanh(self.narrow @ self.narrow.T / 300).mean()


def optimizer(net, **keys):
    return libtgrad.TensorGRaD(net.named_parameters(), lr=1e-2, weight_decay=0.01, update_proj_gap=3,
                               min_entries=100, match_rms=True, **keys)


def train(net, opt, begin, end, clip=None):
    """With accumulation, two passes a step."""
    for step in range(begin, end):
        opt.zero_grad()
        for part in range(1 + opt._options["accumulate"]):
            x = torch.randn(8, 37, generator=torch.Generator().manual_seed(step + 100 * part))
            net(x).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()


def weights(net):
    return [p.full_tensor().detach() if isinstance(p, DTensor) else p.detach().clone()
            for p in net.parameters()]


def sharded(mesh):
    net = Net()
    fully_shard(net.spectral, mesh=mesh)  # each call takes parameters of one dtype
    fully_shard(net, mesh=mesh)
    return net


def meshes(rank):
    """{ranks: its mesh} of those that this rank takes part in."""
    found = {count: dist.DeviceMesh("cpu", list(range(count))) for count in COUNTS}
    return {count: mesh for count, mesh in found.items() if rank < count}


def steps(mesh, keys):
    net = sharded(mesh)
    opt = optimizer(net, **keys)
    train(net, opt, 0, 5)
    held = sum(opt.memory().get(part, 0) for part in ("optimizer", "factors", "indices"))
    return weights(net), held


def network(mesh=None):
    """A module of the library, sharded if there is a mesh."""
    torch.manual_seed(0)
    net = libtgrad.nn.FNO((6, 5), 1, 1, 8, n_layers=2)
    if mesh:
        for conv in net.fno_blocks.convs.children():
            fully_shard(conv.weight, mesh=mesh)
        fully_shard(net, mesh=mesh)
    opt = optimizer(net, in_backward=True)
    for step in range(3):
        net(torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        opt.step()
    return weights(net)


def save(mesh, path):
    """Saved after 4 steps; the weights after 8."""
    net = sharded(mesh)
    opt = optimizer(net)
    train(net, opt, 0, 4)
    state = {"net": net.state_dict(), "opt": get_optimizer_state_dict(net, opt)}
    dcp.save(state, checkpoint_id=path, process_group=mesh.get_group())
    train(net, opt, 4, 8)
    return weights(net)


def load(mesh, path):
    net = sharded(mesh)
    opt = optimizer(net)
    state = {"net": net.state_dict(), "opt": get_optimizer_state_dict(net, opt)}
    dcp.load(state, checkpoint_id=path, process_group=mesh.get_group())
    net.load_state_dict(state["net"])
    set_optimizer_state_dict(net, opt, state["opt"])
    train(net, opt, 4, 8)
    return weights(net)


def through_full(mesh):
    """By way of a state dict of whole tensors, as one process could have saved."""
    net = sharded(mesh)
    opt = optimizer(net)
    train(net, opt, 0, 4)
    whole = StateDictOptions(full_state_dict=True)
    state = get_optimizer_state_dict(net, opt, options=whole)
    other = sharded(mesh)
    other.load_state_dict(net.state_dict())
    later = optimizer(other)
    set_optimizer_state_dict(other, later, state, options=whole)
    train(other, later, 4, 8)
    return weights(other), state


def through_flat(mesh, keys):
    """By way of a flat state dict, in which parameters have no entry of their own."""
    net, other = sharded(mesh), sharded(mesh)
    opt, later = optimizer(net, **keys), optimizer(other, **keys)
    train(net, opt, 0, 4)
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    state = get_optimizer_state_dict(net, opt, options=flat)
    other.load_state_dict(net.state_dict())
    set_optimizer_state_dict(other, later, state, options=flat)
    train(other, later, 4, 8)
    return weights(other)


def late(mesh):
    """A network that gets its memory and its weights after fully_shard, and what it says of weights in bf16."""
    with torch.device("meta"):
        net = libtgrad.nn.FNO((6, 5), 1, 1, 8, n_layers=2)
    for conv in net.fno_blocks.convs.children():
        fully_shard(conv.weight, mesh=mesh)
    fully_shard(net, mesh=mesh)
    net.to_empty(device="cpu")
    torch.manual_seed(0)
    net.reset_parameters()
    half = libtgrad.nn.FNO((6, 5), 1, 1, 8, n_layers=2)
    for conv in half.fno_blocks.convs.children():
        fully_shard(conv.weight, mesh=mesh)
    fully_shard(half, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return weights(net), sentence(half, torch.zeros(1, 1, 12, 12))


def placed(mesh, placements):
    """Five steps with parameters that are placed by hand."""
    net = Net()
    params = [torch.nn.Parameter(distribute_tensor(p.detach(), mesh, placements))
              for p in net.parameters() if p.dim() > 1]
    opt = libtgrad.TensorGRaD(params, lr=1e-2, update_proj_gap=3, min_entries=100, match_rms=True)
    for step in range(5):
        for param in params:
            whole = torch.randn(param.shape, dtype=param.dtype, generator=torch.Generator().manual_seed(step))
            param.grad = distribute_tensor(whole, mesh, placements)
        opt.step()
    return [p.full_tensor().detach() for p in params]


def sentence(function, *args, **keys):
    """What an Error says; every rank has one."""
    try:
        function(*args, **keys)
    except libtgrad.Error as error:
        return str(error)
    return "no error"


def refusals(mesh):
    """Sentences, and the weights after some of them."""
    found = {}
    net = sharded(mesh)
    found["memory_budget"] = sentence(optimizer, net, memory_budget=0.1)
    opt = optimizer(net)
    found["distributed"] = sentence(opt.distributed)
    train(net, opt, 0, 4)
    state = opt.state_dict()
    found["mesh"] = sentence(optimizer(sharded(half_of(mesh))).load_state_dict, state)
    found["whole"] = sentence(optimizer(Net()).load_state_dict, state)
    other = optimizer(net, method="lowrank").state_dict()
    other = {**other, "state": state["state"]}
    found["method"] = sentence(opt.load_state_dict, other)
    mixed = {**state, "state": state["state"] if mesh.get_rank() else {}}
    found["ranks"] = sentence(opt.load_state_dict, mixed)
    train(net, opt, 4, 8)
    found["after"] = weights(net)
    grid = dist.DeviceMesh("cpu", [[0, 1], [2, 3]])
    twice = torch.nn.Parameter(distribute_tensor(torch.zeros(4, 4), grid, [Shard(0), Shard(1)]))
    twice.grad = torch.zeros_like(twice)
    found["placements"] = sentence(libtgrad.TensorGRaD([twice], match_rms=False).step)
    return found


def half_of(mesh):
    """Every rank takes part in one of two meshes."""
    return dist.DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("a", "b"))["b"]


def not_finite(mesh):
    """A gradient with NaN, which its owner refuses: the sentence, and whether that weight is as it was."""
    net = sharded(mesh)
    found = []
    for in_backward in (False, True):
        opt = optimizer(net, nonfinite="error", in_backward=in_backward)
        before = net.spectral.weight.full_tensor()
        net(torch.full((8, 37), float("nan"))).backward()
        found += [sentence(opt.step), torch.equal(before, net.spectral.weight.full_tensor())]
        opt.zero_grad()
    return found


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=4)
    mine, found = meshes(rank), {}
    for count, mesh in mine.items():
        for number, keys in enumerate(CASES):
            found["steps", count, number] = steps(mesh, keys)
        net = sharded(mesh)
        train(net, optimizer(net), 0, 5, clip=0.01)
        found["clipped", count] = weights(net)
        found["network", count] = network(mesh)
        net = sharded(mesh)
        train(net, optimizer(net, in_backward=True, max_grad_norm=0.01), 0, 5)
        found["clipped sums", count] = weights(net)
        found["saved", count] = save(mesh, f"{folder}/saved-{count}")
    dist.barrier()
    for count, mesh in mine.items():
        for before in COUNTS:
            found["loaded", before, count] = load(mesh, f"{folder}/saved-{before}")
        found["full", count] = through_full(mesh)
        found["flat", count] = through_flat(mesh, {})
        found["flat, in backward", count] = through_flat(mesh, {"in_backward": True})
        found["late", count] = late(mesh)
        found["not finite", count] = not_finite(mesh)
    four, grid = mine[4], dist.DeviceMesh("cpu", [[0, 1], [2, 3]])
    for name, mesh, placements in (("replicate", four, [Replicate()]), ("second", four, [Shard(1)]),
                                   ("hybrid", grid, [Replicate(), Shard(0)])):
        found[name] = placed(mesh, placements)
    found["refusals"] = refusals(four)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()
