"""Times of libtgrad.nn.FNO against neuraloperator's FNO: forward and backward of one batch.

    python3 bench/torch_fno.py [--device cuda] [--compile] [--repeats 9] [NAME ..]

Both have the same weights and run in turns in one process; the times are medians, in ms. On a GPU
both multiply in TF32 and the peak of torch's memory is listed, too; --compile adds torch.compile of
neuraloperator's. The last column is the relative error of all gradients together, against
neuraloperator's without torch.compile.
"""
import argparse
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import libtgrad  # noqa: E402
from neuralop.models import FNO  # noqa: E402

# name: (channels in and out, hidden channels, modes, batch, grid)
SHAPES = {
    "darcy16": ((1, 1), 32, (16, 16), 16, (16, 16)),
    "darcy141": ((1, 1), 64, (32, 32), 4, (141, 141)),
    "darcy421": ((1, 1), 64, (64, 64), 4, (421, 421)),
    "ns128": ((1, 1), 64, (64, 64), 8, (128, 128)),
    "ns1024": ((1, 1), 64, (64, 64), 1, (1024, 1024)),
    "burgers1024": ((1, 1), 64, (16,), 16, (1024,)),
    "cube32": ((1, 1), 32, (12, 12, 12), 2, (32, 32, 32)),
}


def step(model, x, dy):
    for parameter in model.parameters():
        parameter.grad = None
    model(x).backward(dy)


def gradients(model, names):
    found = dict(model.named_parameters())
    return torch.cat([torch.view_as_real(g).flatten() if g.is_complex() else g.flatten()
                      for g in (found[name].grad for name in names)])


def measure(name, device, with_compile, repeats):
    (inside, outside), hidden, modes, batch, grid = SHAPES[name]
    torch.manual_seed(0)
    theirs = FNO(n_modes=modes, in_channels=inside, out_channels=outside, hidden_channels=hidden).to(device)
    ours = libtgrad.nn.FNO(modes, inside, outside, hidden).to(device)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(batch, inside, *grid, device=device)
    dy = torch.randn(batch, outside, *grid, device=device) / batch
    models = {"neuraloperator": theirs, "libtgrad.nn": ours}
    if with_compile:
        models["compiled"] = torch.compile(theirs)
    times, peaks = {kind: [] for kind in models}, {}
    for repeat in range(repeats + 2):  # two to warm up
        for kind, model in models.items():
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            step(model, x, dy)
            if device == "cuda":
                torch.cuda.synchronize()
                peaks[kind] = torch.cuda.max_memory_allocated()
            if repeat > 1:
                times[kind].append(1e3 * (time.perf_counter() - begin))
    names = [n for n, _ in ours.named_parameters()]
    step(theirs, x, dy)
    expected = gradients(theirs, names)
    step(ours, x, dy)
    error = ((gradients(ours, names) - expected).norm() / expected.norm()).item()
    base = statistics.median(times["neuraloperator"])
    for kind in models:
        median = statistics.median(times[kind])
        peak = f"{peaks[kind] / 1e9:8.2f} GB" if peaks else ""
        print(f"{name:12} {kind:15} {median:10.2f} ms  {base / median:6.2f} x{peak}"
              + (f"   error {error:.1e}" if kind == "libtgrad.nn" else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHAPES)}; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile of neuraloperator's, too")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for name in given.names or SHAPES:
        measure(name, given.device, given.compile, given.repeats)


if __name__ == "__main__":
    main()
