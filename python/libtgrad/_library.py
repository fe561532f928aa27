"""The shared library: found, loaded, and its calls with exceptions in place of statuses."""
import ctypes
import logging
import os
import pathlib
import time
import weakref

try:
    from . import _interface as c
except ImportError as error:  # a source tree that was not built
    raise ImportError("libtgrad: python/libtgrad/_interface.py is not there: run `make build`") from error


log = logging.getLogger("libtgrad")
_LEVELS = {c.TG_LOG_DEBUG: logging.DEBUG, c.TG_LOG_INFO: logging.INFO, c.TG_LOG_WARN: logging.WARNING,
           c.TG_LOG_ERROR: logging.ERROR}


class Error(RuntimeError):
    """A call of the library failed: its message; `status` is its code, TG_E_SHAPE and so on."""

    def __init__(self, sentence, status=c.TG_E_ARGUMENT):
        super().__init__(sentence)
        self.status = status


def _candidates():
    """Where the library may be, best first."""
    package = pathlib.Path(__file__).resolve().parent
    yield from sorted(package.glob("libtgrad*.so*"))
    yield from sorted((package / "lib").glob("libtgrad.so*"))
    named = os.environ.get("LIBTGRAD_LIBRARY")
    if named:
        yield pathlib.Path(named)
    tree = package.parent.parent
    for folder in ("build-cuda", "build"):
        yield tree / folder / "lib" / "libtgrad.so"


def _is_busy():
    """Whether other threads occupy half of the cores, in eight looks."""
    try:
        total = 0
        for _ in range(8):
            total += int(pathlib.Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1
            time.sleep(0.002)
    except (OSError, ValueError, IndexError):
        return False
    return total >= 4 * (os.cpu_count() or 1)


def _environment():
    """What the runtimes read when they are loaded. OpenBLAS would make threads, which the library does not use.
    OpenMP's threads spin while they wait, which on a busy machine keeps those that they wait for from running."""
    found = {"OPENBLAS_NUM_THREADS": "1"}
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys() and _is_busy():
        found["OMP_WAIT_POLICY"] = "passive"
    return found


def _open(path):
    before = dict(os.environ)
    changed = _environment()
    os.environ.update(changed)
    try:
        return ctypes.CDLL(str(path))
    finally:
        for name in changed:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _load():
    tried = []
    for path in _candidates():
        if not path.exists():
            tried.append(f"{path}: not there")
            continue
        try:
            return path, _open(path)
        except OSError as error:  # such as CUDA libraries that are missing
            tried.append(f"{path}: {error}")
    raise ImportError("libtgrad: no shared library could be loaded (set LIBTGRAD_LIBRARY to the file "
                      "libtgrad.so, or run `make build`): " + "; ".join(tried))


def _declare(library, path):
    missing = []
    for name, (result, arguments) in c.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            missing.append(name)
            continue
        function.restype = result
        function.argtypes = arguments
    if missing:
        raise ImportError(f"libtgrad: {path} is of another version than this package: it has no "
                          + ", ".join(missing[:3]))


path, lib = _load()
_declare(lib, path)


def text(value):
    """A `const char *` as str."""
    return value.decode("utf-8", "replace") if value else ""


def _sentence(context, status):
    return (text(lib.tg_context_error(context)) or text(lib.tg_status_name(status)))


class Context:
    """A tg_context, and an argument of calls in its place. `check` turns a status into an Error; with `logs`
    messages go to the logger "libtgrad"."""

    def __init__(self, backend=None, threads=0, logs=False, device=-1, stream=None, allocator=None,
                 math=None):
        config = c.tg_context_config()
        lib.tg_context_config_init(config, ctypes.sizeof(config))
        config.threads = self.threads = threads
        config.device = device
        config.stream = stream
        if math is not None:
            config.math = math
        if logs:
            config.log = self._log = c.tg_log_fn(
                lambda _, level, message: log.log(_LEVELS[level], "%s", text(message)))
            config.log_level = c.TG_LOG_INFO
        if allocator:
            config.allocator = self._allocator = allocator
        handle = ctypes.c_void_p()
        status = lib.tg_context_create(config, handle)
        if status != c.TG_OK:
            raise Error(_sentence(None, status), status)
        self._as_parameter_ = handle
        self._end = weakref.finalize(self, lib.tg_context_destroy, ctypes.byref(handle))
        if backend:
            self.check(lib.tg_backend_select(handle, backend.encode()))

    def check(self, status):
        if status != c.TG_OK:
            raise Error(_sentence(self._as_parameter_, status), status)

    def own(self, owner, destroy, handle):
        """`destroy` ends `handle` when `owner` is gone, always before the context."""
        return weakref.finalize(owner, _destroy, destroy, handle, self)

    @property
    def backend(self):
        return text(lib.tg_backend_name(self))

    def memory(self, place=c.TG_HOST):
        """Bytes held now, by category."""
        usage = lib.tg_context_memory(self, place)
        return {text(lib.tg_mem_category_name(i)): usage.current[i]
                for i in range(c.TG_MEM_CATEGORIES) if usage.current[i]}


def _destroy(destroy, handle, context):
    """Keeps the context alive until the object is gone."""
    destroy(ctypes.byref(handle))


def shape_of(sizes):
    """A tg_shape; more dimensions than the library has are refused by the call it is given to."""
    shape = c.tg_shape(len(sizes))
    for i, size in enumerate(sizes[:c.TG_MAX_NDIM]):
        shape.dim[i] = size
    return shape
