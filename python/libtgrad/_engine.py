"""The library's optimizer for the parameters on one device."""
import ctypes
import weakref

import numpy
import torch

from . import _settings
from ._arrays import NUMPY_OF
from ._factored import Factored, Memory
from ._library import Error, c, lib, shape_of, text
from ._torch import DTYPES, KINDS, describe, make_context

_WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32,
         torch.complex32: torch.complex64}
# Of arrays in an archive. Complex bf16, which torch lacks, is stored as pairs in the last dimension.
_STATE = {**KINDS, c.TG_CBF16: torch.bfloat16, c.TG_U8: torch.uint8, c.TG_I64: torch.int64,
          c.TG_U64: torch.int64}
FORMAT = 1  # of saved states
_STRIDED = torch.strided
_AHEAD = 1 << 20  # entries of a parameter that keeps a GPU busy while others are gathered


def _mark_written(params):
    """Reports the library's writes to autograd, which then refuses graphs that need the old weights."""
    increment = torch.autograd.graph.increment_version
    if _MARKS_LISTS:
        increment(params)
        return
    for param in params:
        increment(param)


def _marks_lists():
    """Older versions of torch take one tensor at a time."""
    try:
        torch.autograd.graph.increment_version([])
    except (RuntimeError, TypeError):
        return False
    return True


_MARKS_LISTS = _marks_lists()


class Moved(Exception):
    """A parameter is on another device than it was."""


class Row:
    """One parameter: its checked properties, and the template of its gradient."""

    def __init__(self, param, number, name, group):
        self.param, self.number, self.name, self.group = param, number, name, group
        self.shape, self.dtype = param.shape, param.dtype


def check_param(param, name):
    """Refuses parameters that cannot have an optimizer state."""
    if any(hasattr(param, mark) for mark in ("_is_flat_param", "_fsdp_flattened")):
        raise Error(f"weight of {name}: FullyShardedDataParallel (FSDP 1) has flattened it, so that its "
                    "shape is lost; torch.distributed.fsdp.fully_shard (FSDP2) keeps it")
    if param.layout is not torch.strided:
        raise Error(f"weight of {name}: it is {param.layout}; dense tensors are needed")
    if param.device.type not in ("cpu", "cuda"):
        raise Error(f"weight of {name}: it is on device {param.device}; cpu and cuda are possible")
    if param.dtype not in DTYPES:
        raise Error(f"weight of {name}: it is {param.dtype}; float32, float64, bfloat16, float16, "
                    "complex64, complex128 and complex32 are possible", c.TG_E_DTYPE)
    if not hasattr(param, "device_mesh"):  # shards of DTensors are copied
        check_memory(param, name)


def _is_array(weight):
    """Whether its memory layout is the one that the library reads."""
    return weight.is_contiguous() and not weight.is_conj() and not weight.is_neg()


def _alignment(tensor):
    return 16 if tensor.is_cuda else tensor.element_size()


def check_memory(weight, name):
    if weight.is_conj() or weight.is_neg():
        raise Error(f"weight of {name}: it is a conjugate or negative view; resolve_conj() or "
                    "resolve_neg() makes a tensor of it")
    if not weight.is_contiguous():
        raise Error(f"weight of {name}: it is not contiguous (strides {tuple(weight.stride())} of "
                    f"{describe(weight)}); contiguous() makes a tensor of it")
    if weight.data_ptr() % _alignment(weight):
        raise Error(f"weight of {name}: its address is not a multiple of {_alignment(weight)} "
                    "bytes; clone() makes a tensor that does")


@torch.no_grad()
def plain(gradient):
    """A gradient as the library reads it: itself, or a copy of a view that is no array. Buckets of
    DistributedDataParallel have gradients at any address."""
    gradient = gradient.resolve_conj().resolve_neg().contiguous()
    return gradient.clone() if gradient.data_ptr() % _alignment(gradient) else gradient


class _Call:
    """One call of the library with the gradients of some parameters of an engine."""

    def __init__(self, places):
        self.places = places
        self.active, self.params = None, []  # those that had a gradient last

    def fill(self, engine, gradients):
        """Lists the gradients for a call. Returns copies that must live until then."""
        active, addresses, copies = [], [], []
        for i in self.places:
            gradient = gradients[i]
            if gradient is None:
                continue
            address = gradient.data_ptr()
            if (address & 15 or not gradient.is_contiguous() or gradient.is_neg()
                    or gradient.is_conj()):
                gradient = plain(gradient)
                copies.append(gradient)
                address = gradient.data_ptr()
            active.append(i)
            addresses.append(address)
        if active != self.active:
            self._choose(engine, active)
        self._addresses[:] = addresses
        return copies

    def _choose(self, engine, active):
        self.gradients = (c.tg_gradient * len(active))()
        for position, i in enumerate(active):
            self.gradients[position] = engine.template[i]
        words = numpy.frombuffer(self.gradients, numpy.uint64) if active else numpy.empty(0)
        stride = ctypes.sizeof(c.tg_gradient) // 8
        self._addresses = words[c.tg_gradient.dense.offset // 8::stride]
        self.active, self.params = active, [engine.rows[i].param for i in active]


class Engine:
    """With `in_backward` gradients may be Factored, and updates work in the memory of activations, or in
    memory allocated for one update."""

    def __init__(self, rows, groups, seed, accumulates, in_backward=False):
        self.device = rows[0].param.device
        rows = sorted(rows, key=lambda row: -row.param.numel())  # small ones go together, at the end
        self.rows, self.groups, self.seed = rows, list(groups), seed  # others may leave the optimizer
        self.is_cuda = self.device.type == "cuda"
        self.stream = torch.cuda.current_stream(self.device).cuda_stream if self.is_cuda else None
        self._guard = self.on_device()
        self.context = make_context(self.device, self.stream)
        self.place = lib.tg_backend_place(self.context)
        self._backend = self.context.memory(self.place).get("workspace", 0)
        self._list_groups()
        self.optim = ctypes.c_void_p()
        with self.on_device():
            self._create(accumulates, in_backward)
        sink = lib.tg_optim_sink(self.optim)
        self._user, self._receive_all, self._receive = sink.user, sink.receive_all, sink.receive
        # The largest parameter goes ahead, so that a GPU has work while the others are gathered.
        self._is_large = rows[0].param.numel() >= _AHEAD
        self._ahead = None  # the address of the gradient that is
        ahead = int(self._is_large)
        self._calls = [_Call(range(ahead)), _Call(range(ahead, len(rows)))]
        self._params, self._shapes = [row.param for row in rows], [row.shape for row in rows]
        self._index = {id(param): i for i, param in enumerate(self._params)}
        self._grad_dtype = [None] * len(rows)
        self._weights = [0] * len(rows)
        self.template = (c.tg_gradient * len(rows))()
        for i, row in enumerate(rows):
            self.template[i].param = i
            self.template[i].shape = shape_of(row.shape)
            self.template[i].place = self.place
            self._bind(i)
            self._set_gradient_dtype(i, row.dtype)
        self._largest = self.template[0]  # shared

    def on_device(self):
        return torch.cuda.device(self.device) if self.is_cuda else _NOTHING

    # ---- making ----

    def _list_groups(self):
        """Groups of the library: one of ours, or several where shares depend on shape or dtype."""
        self._group_keys, self._group_of = [], []
        for row in self.rows:
            group = self.groups[row.group]
            by_shape = _settings.counts_factors(group)
            is_real = bool(group.get("real")) and not row.dtype.is_complex
            key = (row.group, tuple(row.shape) if by_shape else None, is_real)
            if key not in self._group_keys:
                self._group_keys.append(key)
            self._group_of.append(self._group_keys.index(key))
        self._seen = [_settings.fingerprint(self.groups[g]) for g, *_ in self._group_keys]

    def _create(self, accumulates, in_backward):
        count = len(self.rows)
        configs = (c.tg_optim_config * len(self._group_keys))(
            *[_settings.config_of(self.groups[g], *kind) for g, *kind in self._group_keys])
        params = (c.tg_optim_param * count)()
        for i, row in enumerate(self.rows):
            params[i] = c.tg_optim_param(row.name.encode(), DTYPES[row.dtype], shape_of(row.shape),
                                         self._group_of[i])
        numbers = (ctypes.c_int * count)(*[row.number for row in self.rows])
        setup = c.tg_optim_setup(size=ctypes.sizeof(c.tg_optim_setup), groups=configs,
                                 group_count=len(configs), params=params, param_count=count,
                                 seed=self.seed, accumulates=accumulates, numbers=numbers,
                                 takes_factored=in_backward, shares_workspace=in_backward)
        self.needs, self._lent = None, lambda: None  # a reference to memory that is free, if there is some
        if in_backward:
            planned = c.tg_optim_memory()
            self.context.check(lib.tg_optim_plan_memory(self.context, setup, planned))
            self.needs = planned.shared
        self.context.check(lib.tg_optim_create(self.context, setup, self.optim))
        self.context.own(self, lib.tg_optim_destroy, self.optim)

    def _bind(self, i):
        """Binds the current weight: it may have moved within its device, with the same shape and dtype."""
        row = self.rows[i]
        param = row.param
        if param.device != self.device:
            raise Moved
        if param.shape != row.shape or param.dtype != row.dtype:
            raise Error(f"weight of {row.name}: it is {describe(param)} now; its state was made for "
                        f"{'x'.join(map(str, row.shape))} {str(row.dtype)[6:]}", c.TG_E_SHAPE)
        check_memory(param, row.name)
        weight = c.tg_tensor(DTYPES[row.dtype], shape_of(row.shape), param.data_ptr(), self.place)
        self.context.check(lib.tg_optim_bind(self.optim, i, weight))
        self._weights[i] = param.data_ptr()

    def _set_gradient_dtype(self, i, dtype):
        row = self.rows[i]
        if dtype not in (row.dtype, _WIDE.get(row.dtype)):
            raise Error(f"gradient of {row.name}: it is {dtype}, its weight is {row.dtype}",
                        c.TG_E_DTYPE)
        self.template[i].dtype = DTYPES[dtype]
        self._grad_dtype[i] = dtype
        for call in self._calls:
            call.active = None

    def follow_settings(self):
        """Applies learning rates and other settings that may change between steps."""
        for i, (group, *kind) in enumerate(self._group_keys):
            now = _settings.fingerprint(self.groups[group])
            if now != self._seen[i]:
                config = _settings.config_of(self.groups[group], *kind)
                self.context.check(lib.tg_optim_set_group(self.optim, i, config))
                self._seen[i] = now

    # ---- gradients ----

    def _check(self, i, gradient):
        """Refuses an unusable gradient or weight, and follows changes of their memory and dtype."""
        row = self.rows[i]
        self._bind(i)
        if gradient.layout is not torch.strided:
            raise Error(f"gradient of {row.name}: it is {gradient.layout}; a dense one is needed "
                        "(sparse=False of an embedding)")
        if gradient.shape != row.shape:
            raise Error(f"gradient of {row.name}: it is {describe(gradient)}, its weight is "
                        f"{describe(row.param)}", c.TG_E_SHAPE)
        if gradient.dtype is not self._grad_dtype[i]:
            self._set_gradient_dtype(i, gradient.dtype)

    def project_ahead(self):
        """Starts a GPU on the largest gradient while the host checks all of them, unless something about it
        has changed. Changes no weight."""
        self._ahead = None
        param = self._params[0]
        gradient = param.grad if self._is_large else None
        if (gradient is None or gradient.dtype is not self._grad_dtype[0]
                or gradient.layout is not _STRIDED or not gradient.is_contiguous()
                or gradient.is_neg() or gradient.is_conj() or gradient.data_ptr() & 15
                or gradient.shape != self._shapes[0] or param.shape != self._shapes[0]
                or param.data_ptr() != self._weights[0] or not _is_array(param)):
            return
        self._largest.dense = self._ahead = gradient.data_ptr()
        with self.on_stream():
            self.context.check(lib.tg_optim_project_ahead(self.optim, self._largest))

    def collect(self):
        """The gradients of all parameters, or None. Unusable ones are refused here, before any
        weight changes."""
        gradients = [param.grad for param in self._params]
        for param, gradient, dtype, weight, shape in zip(self._params, gradients, self._grad_dtype,
                                                         self._weights, self._shapes):
            if gradient is not None and (
                    gradient.dtype is not dtype or gradient.layout is not _STRIDED
                    or gradient.shape != shape or param.shape != shape
                    or param.data_ptr() != weight or not param.is_contiguous()
                    or param.is_conj() or param.is_neg()):  # as _is_array, without a call
                self._check(self._index[id(param)], gradient)
        return gradients

    def step(self, gradients):
        """One update with the result of `collect`."""
        for call in self._calls:
            copies = call.fill(self, gradients)
            if call.active:
                try:
                    with self.on_stream():
                        first = call.gradients[0]
                        if self._is_large and call.active == [0] and first.dense != self._ahead:
                            # It could not go ahead, but steps round alike, as the first of a resumed run.
                            self.context.check(lib.tg_optim_project_ahead(self.optim, first))
                        self.context.check(
                            self._receive_all(self._user, len(call.active), call.gradients))
                finally:
                    _mark_written(call.params)  # after an error, too: some may be
            del copies
        if any(call.active for call in self._calls):
            self.end_step()

    def lend(self, memory):
        """Lets updates use this memory while it exists."""
        self._lent = weakref.ref(memory)

    def _borrow(self, forms=False):
        """Workspace for the next call, as long as the caller keeps the result."""
        if self.needs is None:
            return None
        memory = self._lent()
        if memory is None or not memory.has(self.needs):
            memory = Memory.new(self.needs, self.device, forms)
        self._shared = memory.shared
        self.context.check(lib.tg_optim_share_workspace(self.optim, self._shared))
        return memory

    def _ready(self, i, gradient):
        if isinstance(gradient, Factored):
            return gradient
        if (gradient.dtype is not self._grad_dtype[i] or gradient.layout is not _STRIDED
                or gradient.shape != self._shapes[i]):
            self._check(i, gradient)
        return plain(gradient)

    def _one(self, i, gradient):
        if isinstance(gradient, Factored):
            return gradient.handed_to(i, self.place)
        self.template[i].dense = gradient.data_ptr()
        return self.template[i]

    def _follow(self, i):
        """Binds the weight again if it has moved."""
        row = self.rows[i]
        if (row.param.data_ptr() != self._weights[i] or row.param.shape != row.shape
                or not _is_array(row.param)):
            self._bind(i)

    def receive(self, i, gradient):
        """Updates one parameter."""
        gradient = self._ready(i, gradient)
        try:
            with self.on_stream():
                _work = self._borrow(isinstance(gradient, Factored))
                self._follow(i)
                self.context.check(self._receive(self._user, self._one(i, gradient)))
        finally:
            _mark_written([self.rows[i].param])

    def accumulate(self, i, gradient):
        """Adds a gradient to the compressed sum of its parameter."""
        if gradient.dtype in _WIDE:
            gradient = gradient.to(_WIDE[gradient.dtype])  # sums are as wide
        gradient = self._ready(i, gradient)
        with self.on_stream():
            _work = self._borrow(isinstance(gradient, Factored))
            self.context.check(lib.tg_optim_accumulate(self.optim, self._one(i, gradient)))

    def end_step(self):
        with self.on_stream():
            self.context.check(lib.tg_optim_end_update(self.optim))

    def on_stream(self):
        """The context's stream is torch's of the first step; with another one, each waits for the
        other."""
        if not self.is_cuda:
            return _NOTHING
        if torch._C._cuda_getCurrentRawStream(self.device.index) == self.stream:
            return self._guard
        return _Streams(self, torch.cuda.current_stream(self.device))

    # ---- sums ----

    def sums(self):
        """What is accumulated, as tensors that share the library's memory."""
        found = []
        for i in range(len(self.rows)):
            for j in range(lib.tg_optim_sum_count(self.optim, i)):
                part = c.tg_optim_sum()
                self.context.check(lib.tg_optim_get_sum(self.optim, i, j, part))
                found.append(_view(part.tensor, self.device))
        return found

    def is_summing(self, i):
        return lib.tg_optim_sum_count(self.optim, i) > 0

    def has_sums(self):
        return any(map(self.is_summing, range(len(self.rows))))

    def discard(self):
        """Discards accumulated gradients."""
        if self.has_sums():
            with self.on_stream():
                self.context.check(lib.tg_optim_discard(self.optim))

    def norms(self):
        return [torch.linalg.vector_norm(total).to(torch.float64) for total in self.sums()]

    def place_of(self, param):
        return self._index[id(param)]

    def apply(self, places=None):
        """Updates every parameter that has a sum, or those of some places."""
        with self.on_stream():
            for i in range(len(self.rows)) if places is None else places:
                row = self.rows[i]
                if self.is_summing(i):
                    self._follow(i)
                    work = self._borrow()
                    weight = c.tg_tensor(DTYPES[row.dtype], shape_of(row.shape), self._weights[i],
                                         self.place)
                    self.context.check(lib.tg_optim_apply(self.optim, i, weight))
                    del work
                    _mark_written([row.param])
            self.context.check(lib.tg_optim_end_update(self.optim))

    # ---- state ----

    def _archive(self):
        archive = ctypes.c_void_p()
        self.context.check(lib.tg_archive_create(self.context, archive))
        return archive

    def save(self):
        """{number of the parameter: {part: tensor}}, copies on the host."""
        archive = self._archive()
        try:
            with self.on_device():
                self.context.check(lib.tg_optim_save(self.optim, archive))
            found = {row.name: {} for row in self.rows}
            for i in range(lib.tg_archive_count(archive)):
                name, part = self._owner(text(lib.tg_archive_name(archive, i)), found)
                if name is not None:
                    found[name][part] = _copy(lib.tg_archive_tensor(archive, i).contents)
            for name, parts in found.items():
                method = lib.tg_archive_meta(archive, f"optim.{name}.method".encode())
                parts["method"] = torch.tensor(list(method), dtype=torch.uint8, device="cpu")
            return {row.number: found[row.name] for row in self.rows}
        finally:
            lib.tg_archive_destroy(archive)

    @staticmethod
    def _owner(entry, names):
        """The parameter and the part of "optim.NAME.PART"; names have dots, too, and may begin with
        others: the longest one counts."""
        words = entry.split(".")
        for end in range(len(words) - 1, 1, -1):
            name = ".".join(words[1:end])
            if name in names:
                return name, ".".join(words[end:])
        return None, None

    def load(self, states):
        """States of `save`, by number; a parameter without one begins anew."""
        fresh, archive, alive = self.save(), self._archive(), []
        try:
            steps = 0
            for row in self.rows:
                parts = states.get(row.number) or fresh[row.number]
                kinds = fresh[row.number]
                for part, tensor in parts.items():
                    self._add(archive, row, part, tensor, kinds, alive)
                counters = parts.get("counters")
                steps += int(counters[0]) if torch.is_tensor(counters) and len(counters) else 0
            self.context.check(lib.tg_archive_set_meta(archive, b"optim.format", b"%d" % FORMAT))
            totals = torch.tensor([steps, 0, numpy.uint64(self.seed).astype(numpy.int64)], device="cpu")
            self._add_tensor(archive, "optim.totals", c.TG_I64, totals, alive)
            with self.on_device():
                self.context.check(lib.tg_optim_load(self.optim, archive))
        finally:
            lib.tg_archive_destroy(archive)

    def _add(self, archive, row, part, tensor, kinds, alive):
        name = f"optim.{row.name}.{part}"
        if not torch.is_tensor(tensor):
            raise Error(f"optimizer state: {name} is no tensor", c.TG_E_FORMAT)
        if hasattr(tensor, "device_mesh"):
            raise Error(f"optimizer state: {name} is split over {tensor.device_mesh}, its parameter is not; "
                        "get_optimizer_state_dict with full_state_dict=True saves whole tensors",
                        c.TG_E_FORMAT)
        tensor = tensor.detach().cpu().contiguous()
        if part == "method" and tensor.dtype == torch.uint8:
            self.context.check(lib.tg_archive_set_meta(archive, name.encode(), bytes(tensor.tolist())))
            return
        if tensor.dtype not in DTYPES and tensor.dtype not in (torch.uint8, torch.int64):
            raise Error(f"optimizer state: {name} is {tensor.dtype}", c.TG_E_FORMAT)
        kind = {torch.uint8: c.TG_U8, torch.int64: c.TG_I64}.get(tensor.dtype)
        kind = DTYPES[tensor.dtype] if kind is None else kind
        if part.endswith("bitmap") and kind == c.TG_I64:
            kind = c.TG_U64
        if kind == c.TG_BF16 and tensor.dim() == 2:
            kind = c.TG_CBF16
        self._add_tensor(archive, name, kind, tensor, alive)

    def _add_tensor(self, archive, name, kind, tensor, alive):
        alive.append(tensor)
        shape = tensor.shape[:-1] if kind == c.TG_CBF16 else tensor.shape
        view = c.tg_tensor(kind, shape_of(shape), tensor.data_ptr() or None, c.TG_HOST)
        self.context.check(lib.tg_archive_add_view(archive, name.encode(), view))

    # ---- queries ----

    def dense_bytes(self):
        """Of AdamW's moments."""
        return sum(2 * row.param.numel() * row.param.element_size() for row in self.rows)

    def memory(self):
        """Bytes by category. Scratch of the backend, the same for any network, is not workspace."""
        found = self.context.memory(self.place)
        return {**found, "workspace": found.get("workspace", 0) - self._backend,
                "backend": self._backend}

    def projections(self):
        return {row.name: lib.tg_optim_get_projection(self.optim, i)
                for i, row in enumerate(self.rows)}

    def stats(self):
        with self.on_device():
            self.context.check(lib.tg_optim_synchronize(self.optim))
        found = lib.tg_optim_get_stats(self.optim)
        return {name: getattr(found, name) for name, _ in found._fields_}


class _Nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


_NOTHING = _Nothing()


class _Streams:
    """Work between two streams of torch, in order."""

    def __init__(self, engine, now):
        self.device, self.now = engine.device, now
        self.own = (torch.cuda.ExternalStream(engine.stream, device=engine.device) if engine.stream
                    else torch.cuda.default_stream(engine.device))

    def __enter__(self):
        self.guard = torch.cuda.device(self.device)
        self.guard.__enter__()
        self.own.wait_stream(self.now)

    def __exit__(self, *error):
        self.now.wait_stream(self.own)
        self.guard.__exit__(*error)


class _Array:
    def __init__(self, tensor):
        shape = tuple(tensor.shape.dim[:tensor.shape.ndim])
        self.__cuda_array_interface__ = {"shape": shape, "typestr": numpy.dtype(NUMPY_OF[tensor.dtype]).str,
                                         "data": (tensor.data, False), "version": 2}


def _view(tensor, device):
    """A tensor of torch in memory of the library, valid as long as the library says."""
    if device.type == "cuda":
        return torch.as_tensor(_Array(tensor), device=device)
    size = lib.tg_tensor_bytes(tensor)
    memory = (ctypes.c_char * size).from_address(tensor.data)
    return torch.frombuffer(memory, dtype=_STATE[tensor.dtype]).view(
        tensor.shape.dim[:tensor.shape.ndim])


def _copy(tensor):
    """A tensor of an archive as one of torch."""
    kind = _STATE[tensor.dtype]
    shape = tensor.shape.dim[:tensor.shape.ndim] + ([2] if tensor.dtype == c.TG_CBF16 else [])
    size = lib.tg_tensor_bytes(tensor)
    if size == 0:
        return torch.empty(shape, dtype=kind, device="cpu")
    memory = (ctypes.c_char * size).from_address(tensor.data)
    return torch.frombuffer(memory, dtype=kind).view(shape).clone()
