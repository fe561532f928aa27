"""One of two processes that train together: RANK FOLDER."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch

from test_torch_backward import Net, batches, loss_of, optimizer, weights


def train(rank, in_backward):
    """Three steps of four micro-batches, which the processes share."""
    net = Net()
    keys = {"in_backward": True, "accumulate": True, "max_grad_norm": 0.5} if in_backward else {}
    opt = optimizer(net, update_proj_gap=2, **keys)
    if rank is not None:
        if rank == 1:
            with torch.no_grad():
                net.last.bias.add_(1.0)  # the weights of the first process count
        assert opt.distributed() is opt
    late = torch.nn.Parameter(torch.full((30, 40), float(rank or 0)))  # so do those of groups added later
    opt.add_param_group({"params": [late]})
    data = batches(12)
    for step in range(3):
        mine = range(4) if rank is None else range(rank, 4, 2)
        opt.zero_grad()
        for i in mine:
            ((loss_of(net, data[4 * step + i]) + late.sum()) / len(mine)).backward()
        opt.step()
    return [*weights(net), late.detach()]


def train_scaled(rank):
    """Three steps with a GradScaler; in the second one the gradients of one process overflow."""
    net = Net()
    opt = optimizer(net).distributed()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step, batch in enumerate(batches(3, seed=rank)):
        opt.zero_grad()
        scaler.scale(loss_of(net, batch) * (float("inf") if (step, rank) == (1, 0) else 1.0)).backward()
        scaler.step(opt)
        scaler.update()
    return [*weights(net), torch.tensor(scaler.get_scale())]


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank,
                                         world_size=2)
    torch.save({False: train(rank, False), True: train(rank, True), "scaled": train_scaled(rank)},
               folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
