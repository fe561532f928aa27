#!/usr/bin/env python3
"""Time of one prediction: neuraloperator's FNO in PyTorch, libtgrad, and the C sources of `tgrad export`.

    pip install torch neuraloperator numpy
    bench/predict_latency.py [--tgrad build/bin/tgrad] [--threads 1,2] [--size 128] [--compile] [--json]
    LIBTGRAD_LIBRARY=build-cuda/lib/libtgrad.so bench/predict_latency.py --gpu [--size 128] [--compile]

All three have the same weights and predict the same sample on the CPU; the table has the
differences of the outputs to PyTorch's. Times are the best of several calls after a warm-up. With --gpu: PyTorch and
libtgrad on the GPU, in TF32, from an array in the host's memory to another one.
"""
import argparse
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NETWORK = dict(n_modes=(64, 64), in_channels=1, out_channels=1, hidden_channels=64, n_layers=4,
               projection_channel_ratio=4)  # ns128


def best_ms(call, repeats=10):
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def measure(threads, size, compiles, tgrad, folder):
    """The times with this number of threads; call it in a separate process."""
    import numpy
    import torch
    from neuralop.models import FNO
    sys.path.insert(0, str(ROOT / "python"))
    import libtgrad

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    theirs = FNO(**NETWORK).eval()
    x = torch.randn(1, 1, size, size)
    rows = {}
    with torch.inference_mode():
        wanted = theirs(x).numpy()
        rows["pytorch"] = {"ms": best_ms(lambda: theirs(x))}
        if compiles:
            compiled = torch.compile(theirs)
            rows["torch.compile"] = {"ms": best_ms(lambda: compiled(x))}

    def distance(y):
        return float(numpy.linalg.norm(y - wanted) / numpy.linalg.norm(wanted))

    ours = libtgrad.from_neuralop(theirs, backend="cpu", threads=threads)
    rows["libtgrad"] = {"ms": best_ms(lambda: ours.predict(x.numpy())),
                        "difference": distance(ours.predict(x.numpy()))}
    model, out = f"{folder}/model.safetensors", pathlib.Path(folder) / "c"
    ours.save(model)
    subprocess.run([tgrad, "export", model, "--c", "-o", out, "--grid", str(size)], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run("cc -O3 -fno-math-errno -fno-trapping-math -fopenmp *.c -lm -o example", shell=True,
                   cwd=out, check=True)
    said = subprocess.run(["./example"], cwd=out, check=True, capture_output=True, text=True).stdout
    rows["C sources"] = {"ms": float(said.split()[0]), "difference": float(said.split()[-1])}
    return rows


def measure_gpu(size, compiles):
    """The same on a GPU, copies of the sample there and back included."""
    import numpy
    import torch
    from neuralop.models import FNO
    sys.path.insert(0, str(ROOT / "python"))
    import libtgrad

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    theirs = FNO(**NETWORK).eval()
    x = torch.randn(1, 1, size, size)
    ours = libtgrad.from_neuralop(theirs, backend="cuda")
    on_gpu = copy.deepcopy(theirs).cuda()
    with torch.inference_mode():
        wanted = theirs(x).numpy()

    def predict(model):
        with torch.inference_mode():
            return model(x.cuda()).cpu().numpy()

    calls = {"pytorch": lambda: predict(on_gpu)}
    if compiles:
        compiled = torch.compile(on_gpu)
        calls["torch.compile"] = lambda: predict(compiled)
    calls["libtgrad"] = lambda: ours.predict(x.numpy())
    return {name: {"ms": best_ms(call, 30), "difference": float(numpy.linalg.norm(call() - wanted) /
                                                               numpy.linalg.norm(wanted))}
            for name, call in calls.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tgrad", default=str(ROOT / "build/bin/tgrad"))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--compile", action="store_true", help="also torch.compile")
    parser.add_argument("--gpu", action="store_true", help="on the GPU instead")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    tgrad = str(pathlib.Path(args.tgrad).resolve())
    if args.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(args.one, args.size, args.compile, tgrad, folder)))
        return
    results = {}
    if args.gpu:
        results["GPU"] = measure_gpu(args.size, args.compile)
        args.threads = ""
    for threads in map(int, filter(None, args.threads.split(","))):
        words = [sys.executable, __file__, "--one", str(threads), "--tgrad", tgrad, "--size", str(args.size)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(words + ["--compile"] * args.compile, env=environment, check=True,
                              capture_output=True, text=True)
        results[str(threads)] = json.loads(done.stdout.splitlines()[-1])
    if args.json:
        print(json.dumps(results))
        return
    for threads, rows in results.items():
        for name, row in rows.items():
            ratio = rows["pytorch"]["ms"] / row["ms"]
            print(f"{threads + ' threads' * (not args.gpu):>10}  {name:14} {row['ms']:8.2f} ms  {ratio:5.2f} x  "
                  f"{row.get('difference', 0):.1e}")


if __name__ == "__main__":
    main()
