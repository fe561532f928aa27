"""Training data from equations, as arrays."""
from __future__ import annotations

import ctypes
import os
import pathlib
import tempfile
from typing import Any, NamedTuple

import numpy

from . import _arrays, _config
from ._library import Error, c, lib, text
from .models import open_context
from .progress import Interrupt, display_of


class Samples(NamedTuple):
    """Inputs and outputs, (samples, channels, grid..) each; f32, or c64 for complex fields. On bodies x has
    the points, (samples, points, 3), and y the values there, (samples, channels, points)."""

    x: numpy.ndarray
    y: numpy.ndarray


def equations() -> dict[str, str]:
    """The available equations and their descriptions."""
    result, info = {}, c.tg_pde_info()
    while lib.tg_pde_describe(len(result), info):
        result[text(info.name)] = text(info.summary)
    return result


def generate(equation: str, n: int = 100, resolution: int | None = None, *, seed: int = 0,
             test: bool = False, folder: str | os.PathLike | None = None, backend: str | None = None,
             threads: int = 0, progress: bool | None = None, **parameters: Any) -> Samples:
    """n samples of an equation: "burgers", "darcy", "ns", "kolmogorov", "em", "potential".

        x, y = libtgrad.generate("ns", n=100, resolution=64, reynolds=500)

    Parameters are those of `tgrad generate EQUATION --help`, with _ for -. A sample depends on them, the
    seed and its number alone; `test=True` gives samples that no training set has. With a folder the data
    stay there as a file that `train` reads, and are not made again; interrupted, it goes on next time.
    """
    if n < 1:
        raise Error(f"n: {n} samples; one at least is needed", c.TG_E_ARGUMENT)
    context = open_context(backend or "cpu", threads)
    with tempfile.TemporaryDirectory() as temporary:
        config = c.tg_generator_config()
        lib.tg_generator_config_init(config, ctypes.sizeof(config))
        pairs = [(key.encode(), value.encode()) for key, value in _config.flat(parameters)]
        values = (c.tg_pde_value * len(pairs))(*pairs)
        config.equation = equation.encode()
        config.folder = os.fspath(folder or temporary).encode()
        config.n_train, config.n_test = (0, n) if test else (n, 0)
        config.resolution = resolution or 0
        config.seed = seed
        config.value_count, config.values = len(pairs), values
        path = _run(context, config, display_of(progress))
        arrays, _ = _arrays.read_archive(path, context)
    if "points" in arrays:  # coordinates (samples, points, 3), and values there
        return Samples(arrays["points"][:n], arrays["values"][:n, None])
    points = int(pathlib.Path(path).stem.rpartition("_")[2])
    return Samples(*_with_channels(arrays["x"][:n], arrays["y"][:n], points))


def _run(context, config, display):
    generator, complete = ctypes.c_void_p(), ctypes.c_bool()
    context.check(lib.tg_generator_create(context, config, generator))
    with Interrupt() as interrupt:
        def on_progress(_, progress):
            now = progress.contents
            interrupt.call(display.samples, text(now.unit), now.done, now.total)
            return not interrupt.stops

        try:
            context.check(lib.tg_generator_run(generator, c.tg_generator_fn(on_progress), None, complete))
            display.close()
            interrupt.end(None if complete else "stopped; with a folder the next call goes on")
            file = c.tg_generator_file()
            lib.tg_generator_get_file(generator, 0, file)
            return text(file.path)
        finally:
            lib.tg_generator_destroy(generator)


def _with_channels(x, y, points):
    """Adds a channel dimension to arrays with one channel. Grids have the same number of points in all
    dimensions, and x and y share a grid."""
    dims = 0
    while all(dims < array.ndim - 1 and array.shape[array.ndim - 1 - dims] == points for array in (x, y)):
        dims += 1
    return [array[:, None] if array.ndim == dims + 1 else array for array in (x, y)]
