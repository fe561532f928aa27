"""What the benchmarks of optimizers in PyTorch share."""
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import torch

import libtgrad


def state_bytes(opt):
    """Of tensors, also those inside of objects that the state holds."""
    if isinstance(opt, libtgrad.TensorGRaD):
        return opt.memory()["state"]

    def count(value):
        if torch.is_tensor(value):
            return value.numel() * value.element_size() if type(value) is torch.Tensor else sum(
                map(count, vars(value).values()))
        if isinstance(value, dict):
            return sum(map(count, value.values()))
        if isinstance(value, (list, tuple)):
            return sum(map(count, value))
        return count(vars(value)) if hasattr(value, "__dict__") else 0

    return sum(count(state) for state in opt.state.values())


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def train(model, opt, loss_of, steps, device="cpu"):
    """Trains with a cosine schedule; loss_of(step) is the loss of a batch. Milliseconds are those of
    the optimizer's step: the first one, and the median of the others."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    times = []
    for step in range(steps):
        opt.zero_grad()
        loss_of(step).backward()
        begin = now(device)
        opt.step()
        times.append(1e3 * (now(device) - begin))
        schedule.step()
    return {"state": state_bytes(opt), "first_ms": times[0], "step_ms": statistics.median(times[1:])}


def table(results, score):
    """{name: measures} as lines; the first one is what the others are compared with."""
    first = next(iter(results.values()))
    width = max(map(len, results))
    yield f"{'':{width}}  state, bytes  of AdamW   a step   the first   {score}"
    for name, found in results.items():
        if "skipped" in found:
            yield f"{name:{width}}  skipped: {found['skipped']}"
            continue
        yield (f"{name:{width}}  {found['state']:12}  {100 * found['state'] / first['state']:6.1f} %"
               f"  {found['step_ms']:6.1f} ms  {found['first_ms']:7.0f} ms   {found[score]:.4f}")
