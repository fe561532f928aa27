"""Trained models: load, predict, evaluate, save."""
from __future__ import annotations

import ctypes
import dataclasses
import os
import pathlib
import tempfile
import threading
import warnings
from typing import Any

import numpy

from . import _arrays, _config
from ._library import Context, Error, c, lib, text


def open_context(backend: str | None = None, threads: int = 0) -> Context:
    """A context whose messages go to the logger "libtgrad"."""
    return Context(backend, threads, logs=True)


def find_checkpoint(context: Context, path, which: str | int | None = None) -> pathlib.Path:
    """A file, or of a run folder the checkpoint that is meant; None: the best, else the last."""
    file = ctypes.create_string_buffer(4096)
    which = None if which is None else str(which).encode()
    context.check(lib.tg_run_checkpoint(context, os.fspath(path).encode(), which, file, len(file)))
    return pathlib.Path(os.fsdecode(file.value))


@dataclasses.dataclass(frozen=True)
class TestErrors:
    """Relative errors of a model over a test set."""

    l2: float  # means over the samples
    h1: float
    l2_samples: numpy.ndarray
    h1_samples: numpy.ndarray
    l2_channels: numpy.ndarray  # of each channel by itself
    h1_channels: numpy.ndarray

    def __str__(self):
        return f"l2 {self.l2:.4g}, h1 {self.h1:.4g}, {len(self.l2_samples)} samples"


class Model:
    """A network, its normalizers and its settings. Values are in the units of the data.

        model = libtgrad.Model.load("runs/darcy")
        u = model.predict(a)                  # NumPy, PyTorch, JAX or CuPy; any grid
        print(model.evaluate(a, u_true))
        model.save("darcy.safetensors")

    Threads that share a model take turns.
    """

    def __init__(self, context: Context, handle: ctypes.c_void_p):
        self._context, self._handle = context, handle
        self._turn = threading.RLock()
        context.own(self, lib.tg_model_destroy, handle)

    @classmethod
    def load(cls, path: str | os.PathLike, *, checkpoint: str | int | None = None, config: Any = None,
             backend: str | None = None, threads: int = 0) -> Model:
        """A run folder, of which `checkpoint` is "best" (or None), "last" or the number of a step, a
        checkpoint or a model file; with `config`, a YAML file or a mapping with section "fno", a file of
        weights by neuraloperator's names."""
        context, handle = open_context(backend, threads), ctypes.c_void_p()
        file = os.fspath(find_checkpoint(context, path, checkpoint)).encode()
        if config is None:
            context.check(lib.tg_model_load(context, file, handle))
        else:
            settings = _config.Settings(context, config)
            context.check(lib.tg_model_import(context, file, settings, handle))
        return cls(context, handle)

    def save(self, path: str | os.PathLike) -> None:
        """Writes a model file, which `load`, `tgrad predict`, `eval` and `train --init` take."""
        with self._turn:
            self._context.check(lib.tg_model_save(self._handle, os.fspath(path).encode()))

    @property
    def settings(self) -> dict:
        """What the model was made with, by section."""
        return _config.as_dict(lib.tg_model_settings(self._handle))

    @property
    def checkpoint(self) -> str:
        """Where in its run a checkpoint was written: "best, epoch 8 of 15 (by h1)"; "" of other models."""
        return text(lib.tg_model_get_origin(self._handle).text)

    @property
    def _network(self):
        return lib.tg_fno_get_config(lib.tg_model_fno(self._handle)).contents

    @property
    def _on_points(self):
        """Whether it goes from points to points (model: gino)."""
        return self._network.architecture == c.TG_ARCHITECTURE_GINO

    @property
    def _dtype(self):
        """Of the numbers that the network takes and gives."""
        is_double = self._network.dtype == c.TG_F64
        if self._network.complex_data:
            return numpy.complex128 if is_double else numpy.complex64
        return numpy.float64 if is_double else numpy.float32

    def weights(self) -> dict[str, numpy.ndarray]:
        """Copies of the weights, by neuraloperator's names."""
        archive = ctypes.c_void_p()
        self._context.check(lib.tg_archive_create(self._context, archive))
        try:
            self._context.check(lib.tg_fno_save(lib.tg_model_fno(self._handle), archive, b""))
            return {lib.tg_archive_name(archive, i).decode():
                    _arrays.array_of(lib.tg_archive_tensor(archive, i).contents, self._context)
                    for i in range(lib.tg_archive_count(archive))}
        finally:
            lib.tg_archive_destroy(archive)

    def _fields(self, value, channels, what):
        """(samples, channels, grid..) in the network's dtype, and how many dimensions were added."""
        dims = self._network.n_dim + 2
        array = _arrays.to_numpy(value, what)
        added = dims - array.ndim
        if added not in (0, 1, 2) or (1 if added else array.shape[1]) != channels:
            raise Error(f"{what}: the model takes (samples, {channels} channel{'s'[:channels != 1]}, grid of "
                        f"{dims - 2} dimension{'s'[:dims != 3]}), and this is {array.shape}", c.TG_E_SHAPE)
        if added == 2:
            array = array[None, None]
        elif added == 1:
            array = array[:, None]
        if numpy.iscomplexobj(array) and not self._network.complex_data:
            raise Error(f"{what}: the model takes real values, and these are {array.dtype}", c.TG_E_DTYPE)
        return numpy.ascontiguousarray(array, self._dtype), added

    @staticmethod
    def _check_finite(array, what):
        """Refuses NaN and Inf: through the transforms one of them would spoil its whole sample."""
        finite = numpy.isfinite(array)
        if not finite.all():
            place = tuple(int(i) for i in numpy.argwhere(~finite)[0])
            raise Error(f"{what}: {array.size - numpy.count_nonzero(finite)} values are NaN or Inf, the first at "
                        f"{place} of {array.shape}", c.TG_E_NUMERIC)

    def _places(self, value, what):
        """Points or queries (samples, places, coordinates); those of one sample have no samples."""
        dims, array = self._network.n_dim, _arrays.to_numpy(value, what)
        if array.ndim not in (2, 3) or array.shape[-1] != dims or numpy.iscomplexobj(array):
            raise Error(f"{what}: the model takes (samples, points, {dims}) or (points, {dims}), and this is "
                        f"{array.shape}", c.TG_E_SHAPE)
        return numpy.ascontiguousarray(array, self._dtype).reshape(-1, *array.shape[-2:])

    def _predict_at(self, x, queries):
        points = self._places(x, "x")
        places = points if queries is None else self._places(queries, "queries")
        if len(places) == 1 < len(points):  # one list for all
            places = numpy.repeat(places, len(points), 0)
        y = numpy.empty((len(points), self._network.out_channels, places.shape[1]), self._dtype)
        turned = numpy.ascontiguousarray(points.swapaxes(1, 2))
        if len(points):
            with self._turn:
                tensors = [_arrays.tensor_of(array, self._context) for array in (turned, places, y)]
                self._context.check(lib.tg_model_predict_at(self._handle, *tensors))
        return _arrays.like(y[0] if numpy.ndim(x) == 2 else y, x)

    def predict(self, x: Any, queries: Any = None) -> Any:
        """The output for x, (samples, channels, grid..); with one channel also (samples, grid..) or one
        grid. It is of the same kind as x, on the same device, and has the same form. NaN or Inf in x is an
        error.

        Of a model on points (GINO) x are these, (samples, points, coordinates) in the unit box, or those of
        one sample, and the output is (samples, channels, points): the values there, or at the queries."""
        network = self._network
        if self._on_points:
            return self._predict_at(x, queries)
        if queries is not None:
            raise Error("queries: the model works on a grid; those of points have queries", c.TG_E_ARGUMENT)
        array, added = self._fields(x, network.in_channels, "x")
        self._check_finite(array, "x")
        y = numpy.empty((array.shape[0], network.out_channels, *array.shape[2:]), array.dtype)
        if len(array):
            with self._turn:
                self._context.check(lib.tg_model_predict(self._handle, _arrays.tensor_of(array, self._context),
                                                         _arrays.tensor_of(y, self._context)))
        if not numpy.isfinite(y).all():
            warnings.warn("the prediction has NaN or Inf, though x has not: look at the weights, and whether x is in "
                          "the units of the training data", RuntimeWarning, stacklevel=2)
        if added and y.shape[1] == 1:
            y = y[:, 0] if added == 1 else y[0, 0]
        return _arrays.like(y, x)

    __call__ = predict

    def evaluate(self, x: Any, y: Any = None, *, batch: int = 16, split: str | None = None) -> TestErrors:
        """Errors over a test set: arrays x and y, or the path of a data file, which is read as those of the
        model's training were. Of a file that was trained on in part `split` is "test" (or None), "train" or
        "all". Points have no h1: NaN."""
        with self._turn:
            return self._evaluate(x, y, batch, split)

    def _take_part(self, path, split, config):
        """Sets the samples of a split in the config of a dataset."""
        found = c.tg_model_split()
        self._context.check(lib.tg_model_get_split(self._handle, path, found))
        split = split or ("test" if found.tests else "all")
        if split not in ("train", "test", "all"):
            raise Error(f"split: {split!r} is not train, test or all", c.TG_E_ARGUMENT)
        if split != "all" and not (found.trained if split == "train" else found.tests):
            raise Error(f"split: the model was trained on {'all' if found.trained else 'nothing'} of "
                        f"{os.fsdecode(path)}", c.TG_E_ARGUMENT)
        if split == "test":
            config.first_sample, config.n_samples = found.first_test, found.tests
        elif split == "train":
            config.n_samples = found.trained

    def _evaluate(self, x, y, batch, split):
        context, dataset = self._context, ctypes.c_void_p()
        config, plain = c.tg_dataset_config(), c.tg_dataset_config()
        lib.tg_dataset_config_init(plain, ctypes.sizeof(plain))
        context.check(lib.tg_model_dataset_config(self._handle, config, ctypes.sizeof(config)))
        for field in ("n_dim", "coordinates", "complex_data", "dtype"):  # arrays have no names and layout
            setattr(plain, field, getattr(config, field))
        batch = 1 if self._on_points else batch  # samples have points of their own
        if batch < 1:
            raise Error(f"batch: {batch} samples at a time; one at least is needed", c.TG_E_ARGUMENT)
        if y is None and not isinstance(x, (str, os.PathLike)):
            raise Error("y: the outputs that arrays x should have are missing", c.TG_E_ARGUMENT)
        if y is None:
            path = os.fspath(x).encode()
            self._take_part(path, split, config)
            context.check(lib.tg_dataset_open(context, path, None, config, dataset))
            arrays = ()
        else:
            arrays = ((self._places(x, "x"), numpy.ascontiguousarray(_arrays.to_numpy(y, "y"), self._dtype))
                      if self._on_points else (self._fields(x, self._network.in_channels, "x")[0],
                                               self._fields(y, self._network.out_channels, "y")[0]))
            if not len(arrays[0]):
                raise Error("x: there are no samples", c.TG_E_ARGUMENT)
            tensors = [_arrays.tensor_of(array, context) for array in arrays]
            context.check(lib.tg_dataset_wrap(context, *tensors, plain, dataset))
        errors = c.tg_test_errors()
        try:
            context.check(lib.tg_model_evaluate(self._handle, dataset, batch, errors))
            lists = {name: numpy.array(getattr(errors, name)[:count])
                     for name, count in (("l2_samples", errors.samples), ("h1_samples", errors.samples),
                                         ("l2_channels", errors.channels), ("h1_channels", errors.channels))}
            return TestErrors(errors.l2, errors.h1, **lists)
        finally:
            lib.tg_test_errors_destroy(errors)
            lib.tg_dataset_close(dataset)
            del arrays

    def __reduce__(self):
        """Copied and pickled as a model file."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.safetensors"
            self.save(path)
            return _restored, (path.read_bytes(), self._context.backend, self._context.threads)

    def __repr__(self):
        network = self._network
        modes = list(network.n_modes[:network.n_dim])
        return (f"<libtgrad.Model: {network.in_channels} -> {network.out_channels} channels, modes {modes}, "
                f"{network.hidden_channels} hidden channels, {network.n_layers} layers>")


def _restored(content, backend, threads):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.safetensors"
        path.write_bytes(content)
        return Model.load(path, backend=backend, threads=threads)
