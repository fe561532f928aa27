"""`python -m libtgrad`: checks this installation and says how to get what it lacks.

`program` runs the program `tgrad` that is in the wheel; installed, it is the command `tgrad`.
"""
import importlib.metadata
import os
import platform
import sys

from ._program import find_program

# Packages that the library works with: their purpose, and how to get them.
PARTNERS = {
    "numpy": ("arrays", "pip install numpy"),
    "torch": ("libtgrad.TensorGRaD, to_neuralop", "pip install torch"),
    "neuralop": ("to_neuralop, from_neuralop", "pip install neuraloperator"),
    "jax": ("arrays of JAX", "pip install jax"),
    "cupy": ("arrays of CuPy", "pip install cupy-cuda13x"),
}
DISTRIBUTIONS = {"neuralop": "neuraloperator", "cupy": "cupy-cuda13x"}


def _line(name, value):
    print(f"{name:<10} {value}")


def _partners():
    for name, (use, command) in PARTNERS.items():
        try:
            _line(name, importlib.metadata.version(DISTRIBUTIONS.get(name, name)))
        except importlib.metadata.PackageNotFoundError:
            _line(name, f"not installed (for {use}: {command})")


def _backends(library):
    for index in range(library.lib.tg_backend_count()):
        info = library.c.tg_backend_info()
        if library.lib.tg_backend_describe(None, index, info) != library.c.TG_OK:
            continue
        text = [library.text(value) for value in (info.name, info.device, info.libraries, info.reason)]
        if info.available:
            _line(text[0], "; ".join(filter(None, text[1:3])))
        else:
            _line(text[0], f"not available: {text[3]}")
    if "cuda" not in library.text(library.lib.tg_build().features):
        _line("cuda", "not in this build (from the sources, with the CUDA toolkit: make wheel TG_CUDA=ON)")


def diagnose():
    """Prints the facts; the exit status, 1 if the library cannot be loaded."""
    _line("Python", f"{platform.python_version()}, {sys.executable}")
    threads = os.environ.get("OMP_NUM_THREADS")
    _line("system", platform.platform())
    _line("threads", f"{len(os.sched_getaffinity(0))} cores"
          + (f", OMP_NUM_THREADS={threads}" if threads else ""))
    try:
        from . import _library as library
    except ImportError as error:
        _line("libtgrad", "cannot be loaded")
        print(error, file=sys.stderr)
        return 1
    build = library.lib.tg_build()
    _line("libtgrad", f"{library.text(build.version)}, {library.path}")
    _line("built with", f"{library.text(build.compiler)}; {library.text(build.features)}")
    _backends(library)
    program = find_program()
    _line("tgrad", program or "the program is not there: plan, analyze and report of runs need it")
    _partners()
    return 0


def program():
    path = find_program()
    if not path:
        sys.exit("tgrad: the program is not in this installation of libtgrad")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # it would start threads that nothing uses
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(diagnose())
