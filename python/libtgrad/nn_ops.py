"""Networks of the library as operators of torch.

    fno(x, weights, config) -> y                                          for inference
    fno_train(x, weights, seed, config, wanted) -> y, saved, is_fresh     what backward reads is `saved`
    fno_backward(dy, x, weights, seed, saved, is_fresh, config, wanted) -> gradients

All arrays are torch's: weights, activations (`saved`), workspace, gradients. The operators keep
nothing but prepared programs, which depend on sizes alone, so that a graph may hold any number of
calls. Where nothing watches operators (`is_eager`), `run` and `train` compute the same at less cost on
the host. Backward overwrites `saved` and clears `is_fresh`; a second one through the same graph
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
from torch.autograd import forward_ad

from . import _arrays as _numpy
from ._factored import Factored, Memory
from ._library import Context, Error, c, lib, shape_of, text
from ._shards import is_sharded
from ._torch import DTYPES, KINDS, describe, make_context

if not hasattr(torch.compiler, "is_exporting"):
    raise ImportError(f"libtgrad.nn needs PyTorch 2.7 or later; this is {torch.__version__}")

MAX_FUNCTIONS = 32  # prepared programs of a device and stream; the oldest is dropped
_ALIGNMENT = 64
_SMALL = 1 << 20  # bytes of gradients that the library computes together
_CPU = torch.device("cpu")
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
# torch.compile's: one call says whether tensors still have the dtype, shape, strides and device that they had
_Guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)


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
        return [(text(param.name), KINDS[param.dtype], torch.Size(param.shape.dim[:param.shape.ndim]))
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
        self.place = lib.tg_backend_place(context)
        grid = (ctypes.c_int64 * len(sizes[1:]))(*sizes[1:])
        _, _, room = config.partition("shared: ")
        shared = c.tg_shared_workspace(*map(int, room.partition("\n")[0].split()))
        context.check(lib.tg_function_create(context, network_config(config), sizes[0], grid, training,
                                             shared, self.handle))
        self._end = context.own(self, lib.tg_function_destroy, self.handle)
        activations, workspace = ctypes.c_size_t(), ctypes.c_size_t()
        context.check(lib.tg_function_sizes(self.handle, activations, workspace))
        self.activations, self.workspace = activations.value, workspace.value
        self._parameters = parameters_of(config)
        count = len(self._parameters)
        # numbers of the weights, from 1, whose gradients arise as factors
        self.factored = {number for number in range(1, 1 + count)
                         if lib.tg_function_sends_factors(self.handle, number - 1)}
        self._weights, self._gradients = (ctypes.c_void_p * count)(), (ctypes.c_void_p * count)()
        self._addresses = self._guards = None  # of the weights of the last call
        self._tensors = {}  # templates, by use, shape and dtype
        self._call = c.tg_function_call(weights=self._weights, gradients=self._gradients)

        self._small, self._size = self._small_gradients() if self.place == c.TG_DEVICE else ({}, 0)

    def _small_gradients(self):
        """(shape, strides, offset) in one memory by number, and its size; none if they are too large for it."""
        found, size = {}, 0
        params = [(number, kind, shape) for number, (_, kind, shape) in enumerate(self._parameters, 1)
                  if number not in self.factored]
        self._kind = params[0][1]
        step = _ALIGNMENT // self._kind.itemsize
        for number, _, shape in params:
            found[number] = shape, torch.empty(shape, device="meta").stride(), size
            size += -(-shape.numel() // step) * step
        is_one = size * self._kind.itemsize <= _SMALL and all(kind is self._kind for _, kind, _ in params)
        return (found, size) if is_one else ({}, 0)

    def share_gradients(self, x, wanted):
        """Small gradients in one memory, by number, where backward computes them in place; empty if none of them
        is wanted."""
        if self._small.keys().isdisjoint(wanted):
            return {}
        memory = x.new_empty(self._size, dtype=self._kind)
        return {number: memory.as_strided(*place) for number, place in self._small.items()}

    def read(self, weights):
        """For the next call: weights as the library reads them. Ones of another shape or dtype would be read beyond
        their end; those of the last call are known."""
        if self._guards and self._addresses == [weight.data_ptr() for weight in weights] and (
                self._guards.check(*weights)):
            return weights
        if len(weights) != len(self._parameters):
            raise Error(f"libtgrad.nn: {len(weights)} weights; the network has {len(self._parameters)}", c.TG_E_SHAPE)
        for weight, (name, dtype, shape) in zip(weights, self._parameters):
            if weight.shape != shape or weight.dtype is not dtype:
                raise Error(f"{name}: it is {describe(weight)}; "
                            f"{describe(torch.empty(shape, dtype=dtype, device='meta'))} is needed", c.TG_E_SHAPE)
        weights = [_array(weight) for weight in weights]
        self._weights[:] = self._addresses = [weight.data_ptr() for weight in weights]
        self._guards = _Guards and _Guards(*weights, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        return weights

    def _fill(self, saved, seed):
        """The arrays of a call, and its workspace, which must live until it has returned."""
        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=saved.device)
        call = self._call
        call.activations, call.workspace = saved.data_ptr(), workspace.data_ptr()
        call.seed = 0 if seed is None else int(seed)
        return call, workspace

    def _tensor(self, use, tensor):
        key = use, tensor.shape, tensor.dtype
        found = self._tensors.get(key)
        if found is None:
            found = self._tensors[key] = c.tg_tensor(DTYPES[tensor.dtype], shape_of(tensor.shape), None,
                                                     self.place)
        found.data = tensor.data_ptr()
        return found

    def forward(self, x, saved, seed, y):
        call, workspace = self._fill(saved, seed)
        self.context.check(lib.tg_function_forward(self.handle, call, self._tensor(0, x), self._tensor(1, y)))
        del workspace

    def backward(self, dy, saved, seed, gradients, has_factors):
        """Computes gradients by number. Returns the factors of those without room, by parameter, and the memory that
        they are in."""
        call, workspace = self._fill(saved, seed)
        count, dx = len(self._parameters), gradients.get(0)
        self._gradients[:] = [gradients[i].data_ptr() if i in gradients else None for i in range(1, 1 + count)]
        factors = (c.tg_gradient * count)() if has_factors else None
        call.factors = factors
        self.context.check(lib.tg_function_backward(self.handle, call, self._tensor(0, dy),
                                                    None if dx is None else self._tensor(1, dx)))
        return factors, Memory((saved, workspace), lib.tg_function_shared(self.handle)) if has_factors else None


class _Place:
    """A device, with its stream and threads: a context, which one thread uses at a time."""

    def __init__(self, device, stream, math):
        self.device, self.lock = device, threading.Lock()
        self.functions, self.captured = collections.OrderedDict(), set()  # by graphs of the user
        self.guard = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        self.context = make_context(device, stream, math)

    def __enter__(self):
        self.lock.acquire()
        try:
            self.guard.__enter__()
        except BaseException:
            self.lock.release()
            raise
        return self

    def __exit__(self, *error):
        try:
            self.guard.__exit__(*error)
        finally:
            self.lock.release()

    def function(self, config, x, training):
        shape = tuple(map(int, x.shape))
        key = config, shape, training
        found = self.functions.get(key)
        if found is None:
            _refuse_capture(self.device)
            found = self.functions[key] = _Function(self.context, config, (shape[0], *shape[2:]), training)
            while len(self.functions) > MAX_FUNCTIONS:
                self.functions.popitem(last=False)
        self.functions.move_to_end(key)
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self.captured.add(found)
        return found


def _refuse_capture(device):
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise Error("libtgrad.nn: torch.cuda.graph captures a network that has not run on its stream with these "
                    "sizes; run it in torch.cuda.stream(s) before torch.cuda.graph(g, stream=s)",
                    c.TG_E_UNSUPPORTED)


@functools.lru_cache(maxsize=64)
def _make_place(device, stream, math, threads):
    _refuse_capture(device)
    return _Place(device, stream, math)


def place_of(tensor):
    device = tensor.device
    if device.type == "cuda":
        math = c.TG_MATH_TF32 if torch.backends.cuda.matmul.allow_tf32 else c.TG_MATH_FP32
        return _make_place(device, torch.cuda.current_stream(device).cuda_stream, math, 0)
    return _make_place(_CPU, None, None, torch.get_num_threads())


def _array(tensor):
    """As the library reads it: itself, or a copy of a view, or of one at an odd address."""
    if (tensor.data_ptr() % _ALIGNMENT == 0 and tensor.is_contiguous() and not tensor.is_neg()
            and not tensor.is_conj()):
        return tensor
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def _empty_output(x, config):
    return x.new_empty((x.shape[0], network_config(config).out_channels, *x.shape[2:]))


def run(x: Tensor, weights: List[Tensor], config: str) -> Tensor:
    y = _empty_output(x, config)
    with place_of(x) as place:
        function = place.function(config, x, False)
        work = torch.empty(function.activations, dtype=torch.uint8, device=x.device)
        weights = function.read(weights)
        function.forward(_array(x), work, None, y)
    return y


fno = torch.library.custom_op("libtgrad::fno", run, mutates_args=())


@fno.register_fake
def _(x, weights, config):
    return _empty_output(x, config)


def _run_train(x: Tensor, weights: List[Tensor], seed: Optional[Tensor], config: str,
               wanted: List[int]) -> Tuple[Tensor, Tensor, Tensor]:
    y = _empty_output(x, config)
    with place_of(x) as place:
        function = place.function(config, x, True)
        saved = torch.empty(function.activations, dtype=torch.uint8, device=x.device)
        weights = function.read(weights)
        function.forward(_array(x), saved, seed, y)
    return y, saved, torch.ones(1, dtype=torch.int64, device="cpu")


fno_train = torch.library.custom_op("libtgrad::fno_train", _run_train, mutates_args=())


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


def _run_backward(dy, x, weights, seed, saved, is_fresh, config, wanted, engines, shares=True):
    """The gradients that are wanted: Factored for weights that have an engine, where they arise so. `shares`: small
    ones may be in one memory."""
    with place_of(x) as place:
        function = place.function(config, x, True)
        weights = function.read(weights)
        factored = function.factored & engines.keys()
        gradients = function.share_gradients(x, wanted) if shares else {}
        others = [number for number in wanted if number not in factored and number not in gradients]
        gradients.update(zip(others, _empty_gradients(x, weights, others)))
        if not is_fresh.item():
            function.forward(_array(x), saved, seed, _empty_output(x, config))
        is_fresh.data.zero_()
        factors, memory = function.backward(_array(dy), saved, seed, gradients, bool(factored))
    for number in factored:
        gradients[number] = Factored(weights[number - 1], factors[number - 1], memory)
        engines[number].lend(memory)
    return [gradients[number] for number in wanted]


def _form_gradients(dy: Tensor, x: Tensor, weights: List[Tensor], seed: Optional[Tensor], saved: Tensor,
                    is_fresh: Tensor, config: str, wanted: List[int]) -> List[Tensor]:
    return _run_backward(dy, x, weights, seed, saved, is_fresh, config, wanted, {}, shares=False)


fno_backward = torch.library.custom_op("libtgrad::fno_backward", _form_gradients, mutates_args=())


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


def _gradients_of(ctx, dy, is_watched):
    """Of x and the weights, None where they are not wanted."""
    x, saved, is_fresh, *weights = ctx.saved_tensors
    seed = weights.pop(0) if ctx.has_seed else None
    gradients = [None] * (1 + len(weights))
    if dy is not None:
        arguments = dy, x, weights, seed, saved, is_fresh, ctx.config, ctx.wanted
        is_last = not (torch.is_grad_enabled() or torch._C._autograd._get_current_graph_task_keep_graph())
        engines = ctx.engines if is_last else {}
        found = fno_backward(*arguments) if is_watched and not engines else _run_backward(*arguments, engines)
        for number, gradient in zip(ctx.wanted, found):
            gradients[number] = gradient
    return gradients


def _backward(ctx, dy, *_):
    gradients = _gradients_of(ctx, dy, True)
    return gradients[0], gradients[1:], None, None, None


fno_train.register_autograd(_backward, setup_context=_save)


class _Train(torch.autograd.Function):
    """fno_train of operators that nothing watches."""

    @staticmethod
    def forward(ctx, seed, config, wanted, x, *weights):
        output = _run_train(x, weights, seed, config, wanted)
        _save(ctx, (x, weights, seed, config, wanted), output)
        return output[0]

    @staticmethod
    def backward(ctx, dy):
        is_watched = torch.is_grad_enabled() or not is_eager(dy)
        return None, None, None, *_gradients_of(ctx, dy, is_watched)


def train(x, weights, seed, config, wanted):
    """y of fno_train."""
    # Function.apply looks for wrappers of torch.func first, which is_eager has excluded
    return super(torch.autograd.Function, _Train).apply(seed, config, wanted, x, *weights)


def is_eager(*tensors):
    """Whether nothing traces or intercepts operators: compilers, modes, transforms, classes of tensors."""
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack()
                or torch._C._are_functorch_transforms_active()) and _PLAIN.issuperset(map(type, tensors))


def refuse_transforms(x, weights, is_eager):
    """Refuses what would pass through the operators with a derivative of zero, and DTensors."""
    if not is_eager and torch._C._are_functorch_transforms_active():
        raise Error("libtgrad.nn: the transforms of torch.func (grad, vmap, jvp, jacrev, ..) are not supported; "
                    "torch.autograd.grad is, and neuraloperator's module has them", c.TG_E_UNSUPPORTED)
    if not is_eager and any(map(is_sharded, (x, *weights))):
        raise Error("libtgrad.nn: x or weights are DTensors; fully_shard gathers the weights for each pass, other "
                    "ways of splitting them are not supported", c.TG_E_UNSUPPORTED)
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(tensor).tangent is not None
                                              for tensor in (x, *weights)):
        raise Error("libtgrad.nn: forward-mode derivatives (torch.autograd.forward_ad) are not computed; "
                    "torch.autograd.grad is supported, and neuraloperator's module has them", c.TG_E_UNSUPPORTED)


def _refuse_twice(ctx, *_):
    raise Error("libtgrad.nn: second derivatives are not computed (a backward pass through gradients made "
                "with create_graph=True); neuraloperator's module has them", c.TG_E_UNSUPPORTED)


fno_backward.register_autograd(_refuse_twice, setup_context=lambda ctx, inputs, output: None)
