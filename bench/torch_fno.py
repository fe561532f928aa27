"""libtgrad.nn.FNO beside neuraloperator's FNO and the program tgrad, in one run.

    python3 bench/torch_fno.py [--device cuda] [--wait] [--compile] [--repeats 9] [NAME ..]

First forward and backward of one batch, in turns and with the same weights: neuraloperator's network (where it is
installed; with --compile also through torch.compile), libtgrad.nn's, and those of `tgrad bench step`, which forms no
gradients of spectral weights there. Then whole steps with TensorGRaD, where none of them does: libtgrad.nn's with
in_backward=True, and tgrad's. On a GPU the host queues ten steps before it waits, as a training loop does, and the time
of a step is a tenth; with --wait it waits after every step, as it always does on a CPU. Times are medians, of one CPU
thread (--threads 1) in CPU time, which other programs do not disturb. On a GPU all of them multiply in TF32, and the
peak of memory is that of the network alone: weights, activations, gradients and state. The error is that of all
gradients together, against neuraloperator's.
"""
import argparse
import json
import statistics
import subprocess

import torch

from torch_measures import now

import libtgrad
from libtgrad import _program

try:
    from neuralop.models import FNO
except ImportError:
    FNO = None

# name: (hidden channels, modes, batch, grid, projection_channel_ratio); the first four are presets of tgrad
SHAPES = {
    "ns128": (64, (64, 64), 8, (128, 128), 4),
    "ns1024": (128, (128, 128), 2, (1024, 1024), 4),
    "darcy421": (128, (64, 64), 2, (421, 421), 1),
    "burgers": (256, (90,), 16, (128,), 1),
    "darcy16": (32, (16, 16), 16, (16, 16), 2),
    "darcy141": (64, (32, 32), 4, (141, 141), 2),
    "cube32": (32, (12, 12, 12), 2, (32, 32, 32), 2),
}
PRESETS = list(SHAPES)[:4]
QUEUED = 10  # steps between two waits, on a GPU


def size_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def gradients(model, names):
    found = dict(model.named_parameters())
    return torch.cat([torch.view_as_real(g).flatten() if g.is_complex() else g.flatten()
                      for g in (found[name].grad for name in names)])


def clear(parameters):
    for parameter in parameters:
        parameter.grad = None


def forward_backward(model, x, dy):
    """A step of the model, as a function."""
    parameters = list(model.parameters())

    def step():
        clear(parameters)
        model(x).backward(dy)

    return step


def measured(steps, given):
    """{name: (ms, bytes beside what was there, or None)} of functions that take turns."""
    times, peaks = {name: [] for name in steps}, dict.fromkeys(steps)
    is_cuda = given.device == "cuda"
    queued = QUEUED if is_cuda and not given.wait else 1
    warm_up = 4 if is_cuda else 2  # graphs are captured when tensors are at the same addresses again
    for repeat in range(given.repeats + warm_up):
        for name, step in steps.items():
            if is_cuda:
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            begin = now(given.device)
            for _ in range(queued):
                step()
            end = now(given.device)
            if is_cuda:
                peaks[name] = torch.cuda.max_memory_allocated() - held
            if repeat >= warm_up:
                times[name].append(1e3 * (end - begin) / queued)
    return {name: (statistics.median(times[name]), peaks[name]) for name in steps}


def of_tgrad(program, name, method, given):
    """(ms of forward and backward, of a step, peak) of `tgrad bench step`."""
    command = [program, "bench", "step", "--preset", name, "--opt", method, "--json", "--backend", given.device,
               "--steps", str(given.repeats), "--threads", str(given.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{name:10} {'tgrad':32} {done.stderr.strip()}")
        return None
    found = json.loads(done.stdout)["optimizers"][0]
    return found["ms"]["forward_backward"], found["ms"]["step"], found["memory"]


def show(name, kind, ms, base, peak, note=""):
    ratio = f"{base / ms:6.2f} x" if base else ""
    print(f"{name:10} {kind:32} {ms:10.2f} ms {ratio:9}" + (f"{peak / 1e9:7.2f} GB" if peak else "") + note,
          flush=True)


def measure(name, given):
    hidden, modes, batch, grid, ratio = SHAPES[name]
    device = given.device
    arguments = {"n_modes": modes, "in_channels": 1, "out_channels": 1, "hidden_channels": hidden,
                 "projection_channel_ratio": ratio}
    torch.manual_seed(0)
    ours = libtgrad.nn.FNO(**arguments).to(device)
    x, dy = torch.randn(batch, 1, *grid, device=device), torch.randn(batch, 1, *grid, device=device) / batch
    models, note = {}, ""
    if FNO:
        models["neuraloperator"] = FNO(**arguments).to(device)
        models["neuraloperator"].load_state_dict(ours.state_dict())
        if given.compile:
            models["the same, torch.compile"] = torch.compile(models["neuraloperator"])
    models["libtgrad.nn"] = ours
    steps = {kind: forward_backward(model, x, dy) for kind, model in models.items()}
    found = measured(steps, given)
    if FNO:
        names = [n for n, _ in ours.named_parameters()]
        for kind in ("neuraloperator", "libtgrad.nn"):
            steps[kind]()
        expected = gradients(models["neuraloperator"], names)
        note = f"   error {((gradients(ours, names) - expected).norm() / expected.norm()).item():.1e}"
    weights, base = size_of(ours.parameters()), found.get("neuraloperator", [None])[0]
    for kind, (ms, peak) in found.items():
        show(name, kind, ms, base, peak and peak + weights, note if kind == "libtgrad.nn" else "")
    for model in models.values():
        clear(model.parameters())
    models.clear()
    steps.clear()
    program = _program.find_program() if name in PRESETS else None
    native = of_tgrad(program, name, "adam", given) if program else None
    if native:
        show(name, "tgrad bench step", native[0], base, None)
    opt = libtgrad.TensorGRaD(libtgrad.param_groups(ours, method="tensorgrad", min_entries=1 << 18), lr=1e-4,
                              preset="paper", match_rms=False, in_backward=True)

    def train():
        ours(x).backward(dy)
        opt.step()

    ms, peak = measured({"train": train}, given)["train"]
    peak = peak and peak + weights + opt.memory()["state"]
    show(name, "libtgrad.nn, TensorGRaD", ms, None, peak)
    native = of_tgrad(program, name, "tensorgrad", given) if program else None
    if native:
        memory = native[2]
        show(name, "tgrad bench step, tensorgrad", native[1], None, (memory["peak"] - memory["data"]) if peak else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHAPES)}; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--wait", action="store_true", help="for every step, on a GPU too")
    parser.add_argument("--compile", action="store_true", help="torch.compile of neuraloperator's, too")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for name in given.names or SHAPES:
        measure(name, given)


if __name__ == "__main__":
    main()
