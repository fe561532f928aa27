"""Networks of the library as operators of torch.

    fno(x, weights, config) -> y                                          for inference
    fno_train(x, weights, seed, config, wanted) -> y, saved, is_fresh     what backward reads is `saved`
    fno_backward(dy, x, weights, seed, saved, is_fresh, config, wanted) -> gradients

All arrays are torch's: weights, activations (`saved`), workspace, gradients. The operators keep
nothing but prepared programs, which depend on sizes alone, so that a graph may hold any number of
calls. Backward overwrites `saved` and clears `is_fresh`; a second one through the same graph
(retain_graph=True) computes the forward pass again first.
"""
import collections
import contextlib
import ctypes
import functools
import threading
from typing import List, Optional, Tuple

import torch
from torch import Tensor

from . import _arrays as _numpy
from . import _engine
from ._factored import Factored, Memory
from ._library import Context, Error, c, lib, shape_of, text

if not hasattr(torch.compiler, "is_exporting"):
    raise ImportError(f"libtgrad.nn needs PyTorch 2.7 or later; this is {torch.__version__}")

MAX_FUNCTIONS = 32  # prepared programs of a device and stream; the oldest is dropped
_ALIGNMENT = 64
_KINDS = {c.TG_F32: torch.float32, c.TG_F64: torch.float64, c.TG_C64: torch.complex64,
          c.TG_C128: torch.complex128}


@functools.lru_cache(maxsize=256)
def network_config(config):
    """A tg_fno_config of lines "key: value". Two of them are fields without a key, and `shared` is the
    room for an optimizer (room_for_updates)."""
    voice = Context("cpu")
    found = c.tg_fno_config()
    lib.tg_fno_config_init(found, ctypes.sizeof(found))
    for line in config.splitlines():
        key, _, value = line.partition(": ")
        if key in ("input_gradient", "blocks_only"):
            setattr(found, key, value == "true")
        elif key != "shared":
            voice.check(lib.tg_fno_config_set(voice, found, key.encode(), value.encode()))
    voice.check(lib.tg_fno_config_check(voice, found))
    return found


@functools.lru_cache(maxsize=256)
def parameters_of(config):
    """(name, dtype, shape) of each parameter, in the library's order and by neuraloperator's names."""
    voice, fno = Context("cpu"), ctypes.c_void_p()
    voice.check(lib.tg_fno_outline(voice, network_config(config), fno))
    try:
        found = [lib.tg_fno_get_param(fno, i) for i in range(lib.tg_fno_param_count(fno))]
        return [(text(param.name), _KINDS[param.dtype], torch.Size(param.shape.dim[:param.shape.ndim]))
                for param in found]
    finally:
        lib.tg_fno_destroy(fno)


def initial_weights(config, seed):
    """Copies of the weights of a new network."""
    voice, fno = Context("cpu"), ctypes.c_void_p()
    voice.check(lib.tg_fno_create(voice, network_config(config), seed, fno))
    try:
        return [torch.from_numpy(_numpy.array_of(lib.tg_fno_get_param(fno, i).weight, voice))
                for i in range(lib.tg_fno_param_count(fno))]
    finally:
        lib.tg_fno_destroy(fno)


class _Function:
    """A tg_function of one batch size and grid."""

    def __init__(self, context, config, sizes, training):
        self.context, self.handle = context, ctypes.c_void_p()
        grid = (ctypes.c_int64 * len(sizes[1:]))(*sizes[1:])
        _, _, room = config.partition("shared: ")
        shared = c.tg_shared_workspace(*map(int, room.partition("\n")[0].split()))
        context.check(lib.tg_function_create(context, network_config(config), sizes[0], grid, training,
                                             shared, self.handle))
        self._end = context.own(self, lib.tg_function_destroy, self.handle)
        activations, workspace = ctypes.c_size_t(), ctypes.c_size_t()
        context.check(lib.tg_function_sizes(self.handle, activations, workspace))
        self.activations, self.workspace = activations.value, workspace.value
        # numbers of the weights, from 1, whose gradients arise as factors
        self.factored = {number for number in range(1, 1 + len(parameters_of(config)))
                         if lib.tg_function_sends_factors(self.handle, number - 1)}

    def call(self, weights, saved, seed, gradients=None):
        """The arrays of a call, and its workspace, which must live until it has returned."""
        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=saved.device)
        pointers = ctypes.c_void_p * len(weights)
        call = c.tg_function_call(activations=saved.data_ptr(), workspace=workspace.data_ptr(),
                                  seed=0 if seed is None else int(seed))
        call.weights = pointers(*[weight.data_ptr() for weight in weights])
        if gradients:
            call.gradients = pointers(*[None if gradient is None else gradient.data_ptr()
                                        for gradient in gradients])
        return call, workspace

    def forward(self, place, x, weights, saved, seed, y):
        call, workspace = self.call(weights, saved, seed)
        self.context.check(lib.tg_function_forward(self.handle, call, place.tensor(x), place.tensor(y)))
        del workspace

    def backward(self, place, dy, weights, saved, seed, dx, gradients):
        """Returns the factors of gradients without room, by parameter, and the memory that they are in."""
        call, workspace = self.call(weights, saved, seed, gradients)
        call.factors = factors = (c.tg_gradient * len(weights))()
        self.context.check(lib.tg_function_backward(self.handle, call, place.tensor(dy),
                                                    None if dx is None else place.tensor(dx)))
        return factors, Memory((saved, workspace), lib.tg_function_shared(self.handle))


class _Place:
    """A device, with its stream and threads: a context, which one thread uses at a time."""

    def __init__(self, device, stream, math):
        self.device, self.lock = device, threading.Lock()
        self.functions = collections.OrderedDict()
        self.context = _engine.make_context(device, stream, math)
        self.place = lib.tg_backend_place(self.context)

    @contextlib.contextmanager
    def taken(self):
        is_cuda = self.device.type == "cuda"
        with self.lock, torch.cuda.device(self.device) if is_cuda else contextlib.nullcontext():
            yield self

    def function(self, config, x, training):
        sizes = tuple(int(size) for size in (x.shape[0], *x.shape[2:]))
        key = (config, sizes, training)
        found = self.functions.get(key)
        if found is None:
            found = _Function(self.context, config, sizes, training)
            self.functions[key] = found
            while len(self.functions) > MAX_FUNCTIONS:
                self.functions.popitem(last=False)
        self.functions.move_to_end(key)
        return found

    def tensor(self, tensor):
        return c.tg_tensor(_engine.DTYPES[tensor.dtype], shape_of(tensor.shape), tensor.data_ptr(),
                           self.place)


@functools.lru_cache(maxsize=64)
def _make_place(device, stream, math, threads):
    return _Place(device, stream, math)


def place_of(tensor):
    device = tensor.device
    if device.type == "cuda":
        math = c.TG_MATH_TF32 if torch.backends.cuda.matmul.allow_tf32 else c.TG_MATH_FP32
        return _make_place(device, torch.cuda.current_stream(device).cuda_stream, math, 0).taken()
    return _make_place(torch.device("cpu"), None, None, torch.get_num_threads()).taken()


def _array(tensor):
    """As the library reads it: itself, or a copy of a view, or of one at an odd address."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def _arrays(weights, config):
    """Weights as the library reads them; ones of another shape or dtype would be read beyond their end."""
    expected = parameters_of(config)
    if len(weights) != len(expected):
        raise Error(f"libtgrad.nn: {len(weights)} weights; the network has {len(expected)}", c.TG_E_SHAPE)
    for weight, (name, dtype, shape) in zip(weights, expected):
        if weight.shape != shape or weight.dtype is not dtype:
            raise Error(f"{name}: it is {_engine.describe(weight)}; "
                        f"{_engine.describe(torch.empty(shape, dtype=dtype, device='meta'))} is needed",
                        c.TG_E_SHAPE)
    return [_array(weight) for weight in weights]


def _empty_output(x, config):
    return x.new_empty((x.shape[0], network_config(config).out_channels, *x.shape[2:]))


@torch.library.custom_op("libtgrad::fno", mutates_args=())
def fno(x: Tensor, weights: List[Tensor], config: str) -> Tensor:
    y, weights = _empty_output(x, config), _arrays(weights, config)
    with place_of(x) as place:
        function = place.function(config, x, False)
        work = torch.empty(function.activations, dtype=torch.uint8, device=x.device)
        function.forward(place, _array(x), weights, work, None, y)
    return y


@fno.register_fake
def _(x, weights, config):
    return _empty_output(x, config)


@torch.library.custom_op("libtgrad::fno_train", mutates_args=())
def fno_train(x: Tensor, weights: List[Tensor], seed: Optional[Tensor], config: str,
              wanted: List[int]) -> Tuple[Tensor, Tensor, Tensor]:
    y, weights = _empty_output(x, config), _arrays(weights, config)
    with place_of(x) as place:
        function = place.function(config, x, True)
        saved = torch.empty(function.activations, dtype=torch.uint8, device=x.device)
        function.forward(place, _array(x), weights, saved, seed, y)
    return y, saved, torch.ones(1, dtype=torch.int64, device="cpu")


@fno_train.register_fake
def _(x, weights, seed, config, wanted):
    with place_of(x) as place:  # sizes of activations are those of one batch size and grid
        function = place.function(config, x, True)
    return (_empty_output(x, config), x.new_empty(function.activations, dtype=torch.uint8),
            torch.empty(1, dtype=torch.int64, device="cpu"))


def _empty_gradients(x, weights, wanted):
    """Of x, which is number 0, and of the weights."""
    inputs = [x, *weights]
    return [torch.empty_like(inputs[i], memory_format=torch.contiguous_format) for i in wanted]


def _run_backward(dy, x, weights, seed, saved, is_fresh, config, wanted, engines):
    """The gradients that are wanted: Factored for weights that have an engine, where they arise so."""
    inputs, slots = [x, *weights], [None] * (1 + len(weights))
    weights = _arrays(weights, config)
    with place_of(x) as place:
        function = place.function(config, x, True)
        factored = function.factored & engines.keys()
        dense = [number for number in wanted if number not in factored]
        for number, gradient in zip(dense, _empty_gradients(x, inputs[1:], dense)):
            slots[number] = gradient
        if not is_fresh[0]:
            function.forward(place, _array(x), weights, saved, seed, _empty_output(x, config))
        is_fresh.data[0] = 0
        factors, memory = function.backward(place, _array(dy), weights, saved, seed, slots[0], slots[1:])
    for number in factored:
        slots[number] = Factored(inputs[number], factors[number - 1], memory)
        engines[number].lend(memory)
    return [slots[number] for number in wanted]


@torch.library.custom_op("libtgrad::fno_backward", mutates_args=())
def fno_backward(dy: Tensor, x: Tensor, weights: List[Tensor], seed: Optional[Tensor], saved: Tensor,
                 is_fresh: Tensor, config: str, wanted: List[int]) -> List[Tensor]:
    return _run_backward(dy, x, weights, seed, saved, is_fresh, config, wanted, {})


@fno_backward.register_fake
def _(dy, x, weights, seed, saved, is_fresh, config, wanted):
    return _empty_gradients(x, weights, wanted)


def _engines_of(weights):
    """Engines of optimizers that update weights during the backward pass, by number of the weight. Such a
    gradient need not be formed."""
    hooks = [(number, weight, hook) for number, weight in enumerate(weights, 1)
             for hook in (weight._post_accumulate_grad_hooks or {}).values() if hasattr(hook, "engine_of")]
    found = {number: hook.engine_of(weight) for number, weight, hook in hooks if weight.requires_grad}
    return {number: engine for number, engine in found.items() if engine is not None}


def room_for_updates(weights):
    """As a line of a config: the workspace of these engines, in the memory of the activations."""
    needs = [engine.needs for engine in _engines_of(weights).values()]
    if not needs:
        return ""
    return (f"shared: {max(need.dense_bytes for need in needs)} {max(need.work_bytes for need in needs)}\n")


def _save(ctx, inputs, output):
    x, weights, seed, ctx.config, ctx.wanted = inputs
    _, saved, is_fresh = output
    ctx.set_materialize_grads(False)
    ctx.has_seed = seed is not None
    ctx.engines = _engines_of(weights) if "shared: " in ctx.config else {}
    ctx.save_for_backward(x, saved, is_fresh, *([seed] if ctx.has_seed else []), *weights)


def _backward(ctx, dy, *_):
    x, saved, is_fresh, *weights = ctx.saved_tensors
    seed = weights.pop(0) if ctx.has_seed else None
    gradients = [None] * (1 + len(weights))
    if dy is not None:
        arguments = dy, x, weights, seed, saved, is_fresh, ctx.config, ctx.wanted
        is_last = not (torch.is_grad_enabled() or torch._C._autograd._get_current_graph_task_keep_graph())
        found = (_run_backward(*arguments, ctx.engines) if ctx.engines and is_last
                 else fno_backward(*arguments))
        for number, gradient in zip(ctx.wanted, found):
            gradients[number] = gradient
    return gradients[0], gradients[1:], None, None, None


fno_train.register_autograd(_backward, setup_context=_save)


def _refuse_twice(ctx, *_):
    raise Error("libtgrad.nn: second derivatives are not computed (a backward pass through gradients made "
                "with create_graph=True); neuraloperator's module has them", c.TG_E_UNSUPPORTED)


fno_backward.register_autograd(_refuse_twice, setup_context=lambda ctx, inputs, output: None)
