#!/usr/bin/env python3
"""Forward and backward of neuraloperator's GINO beside ours, on the CPU or a GPU: same shapes, same run.

    pip install torch neuraloperator
    bench/compare_gino.py [--bench build/bin/bench_gino] [--backend cpu|cuda] [--threads 2] [--steps 3] [--json]

The network is that of bench_gino.c. Theirs has its built-in search and reduction, whether open3d and
torch_scatter are installed or not. Times are those of a step after a warm-up (with --steps 0 of the warm-up):
wall time (median) and CPU time (mean), which is better on a busy machine. Their memory is the growth of the
process's peak from before the model is made; on a GPU, the largest peak of PyTorch's allocator in a step. There
both multiply in TF32. Their steps may take a minute each, so stderr has the times after each step.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def said(*text):
    print(*text, file=sys.stderr, flush=True)


def theirs(backend, threads, steps, ours):
    for name in ("open3d", "torch_scatter"):
        sys.modules[name] = None  # cannot be imported
    import torch
    from neuralop.models import GINO

    on_gpu = backend == "cuda"
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.set_default_device(backend)
    points = torch.rand(1, 4000, 3)
    axis = torch.linspace(0, 1, 32)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), -1)[None]
    x, target = torch.rand(1, 4000, 3), torch.rand(1, 4000, 1)
    before = peak_bytes()
    model = GINO(in_channels=3, out_channels=1, fno_in_channels=3, gno_coord_dim=3, in_gno_radius=0.05,
                 out_gno_radius=0.05, fno_n_modes=(16, 16, 16), fno_hidden_channels=64, fno_n_layers=4,
                 gno_use_open3d=False, gno_use_torch_scatter=False)
    wall, cpu, peak = [], [], []
    for step in range(steps + 1):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        start, start_cpu = time.perf_counter(), time.process_time()
        model.zero_grad(set_to_none=True)
        out = model(input_geom=points, latent_queries=grid, output_queries=points[0], x=x)
        (torch.linalg.norm(out - target) / torch.linalg.norm(target)).backward()
        if on_gpu:
            torch.cuda.synchronize()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
        peak.append(torch.cuda.max_memory_allocated() if on_gpu else peak_bytes() - before)
        said(f"theirs, {f'step {step}' if step else 'warm-up'}: {wall[-1]:.3f} s, "
             f"{1e3 * wall[-1] / ours['forward_backward_ms']:.1f} times ours; {peak[-1] / 1e6:.1f} MB, "
             f"{peak[-1] / ours['bytes']:.2f} times ours")
    timed = min(steps, 1)  # the first one that counts
    return {"torch": torch.__version__, "forward_backward_ms": 1e3 * statistics.median(wall[timed:]),
            "forward_backward_cpu_ms": 1e3 * statistics.mean(cpu[timed:]), "bytes": max(peak)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/bin/bench_gino")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    command = [options.bench, str(options.threads), options.backend]
    ours = json.loads(subprocess.run(command, check=True, capture_output=True,
                                     env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}).stdout)
    said(f"ours: {ours}")
    result = {"ours": ours, "theirs": theirs(options.backend, options.threads, options.steps, ours)}
    if options.json:
        print(json.dumps(result))
        return
    for name in ("forward_backward_ms", "forward_backward_cpu_ms", "bytes"):
        a, b = result["ours"][name], result["theirs"][name]
        print(f"{name}: ours {a:.4g}, theirs {b:.4g}, {b / a:.1f} times as much")
    print(f"search of 1e6 points in 1e6 queries: {ours['search_s']} s, of the processors {ours['search_cpu_s']} s")


if __name__ == "__main__":
    main()
