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
    """Seconds; of one thread of a CPU those that it worked, whatever else the machine does."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


def train(model, opt, loss_of, steps, device="cpu"):
    """Trains with a cosine schedule; loss_of(step) is the loss of a batch. Milliseconds are those of
    the optimizer's step: the first one, and the median of the others. On a GPU, "peak" is that of all but
    the data."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    times, held = [], 0
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() - sum(p.numel() * p.element_size() for p in model.parameters())
    for step in range(steps):
        opt.zero_grad()
        loss_of(step).backward()
        begin = now(device)
        opt.step()
        times.append(1e3 * (now(device) - begin))
        schedule.step()
    peak = torch.cuda.max_memory_allocated() - held if device == "cuda" else None
    return {"state": state_bytes(opt), "first_ms": times[0], "step_ms": statistics.median(times[1:]), "peak": peak}


def measured(title, makers, measure, score, is_quiet):
    """{name: measure(maker)}; prints them as they come, compared with the first one, unless is_quiet."""
    results, width = {}, max(map(len, makers))
    show = (lambda line: None) if is_quiet else lambda line: print(line, flush=True)
    show(f"{title:{width}}  state, bytes  of AdamW   a step    the first   {score}")
    for name, make in makers.items():
        results[name] = found = measure(make)
        first = next(iter(results.values()))
        show(f"{name:{width}}  skipped: {found['skipped']}" if "skipped" in found else
             f"{name:{width}}  {found['state']:12}  {100 * found['state'] / first['state']:6.1f} %"
             f"  {found['step_ms']:6.1f} ms  {found['first_ms']:7.0f} ms   {found[score]:.4f}"
             + (f"   peak {found['peak'] / 1e9:.2f} GB" if found["peak"] else ""))
    return results
