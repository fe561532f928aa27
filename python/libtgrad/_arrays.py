"""Arrays of NumPy, PyTorch, JAX and CuPy: in as NumPy arrays on the host, out as the type that came in."""
import ctypes

import numpy

from ._library import Error, c, lib, shape_of

NUMPY_OF = {
    c.TG_F32: numpy.float32, c.TG_F64: numpy.float64, c.TG_F16: numpy.float16, c.TG_C64: numpy.complex64,
    c.TG_C128: numpy.complex128, c.TG_BOOL: numpy.bool_, c.TG_U8: numpy.uint8, c.TG_I8: numpy.int8,
    c.TG_U16: numpy.uint16, c.TG_I16: numpy.int16, c.TG_U32: numpy.uint32, c.TG_I32: numpy.int32,
    c.TG_U64: numpy.uint64, c.TG_I64: numpy.int64,
}
DTYPE_OF = {numpy.dtype(kind): dtype for dtype, kind in NUMPY_OF.items()}


def _library_of(value):
    """The package that defines the class of an array, or one of its bases."""
    names = [kind.__module__.partition(".")[0] for kind in type(value).__mro__]
    return next((name for name in names if name in ("torch", "jax", "jaxlib", "cupy")), names[0])


def to_numpy(value, what="the array"):
    """Any array as a NumPy one; a copy only where its memory is not the host's."""
    library = _library_of(value)
    if library == "torch":
        value = value.detach().resolve_conj().resolve_neg().cpu()
        return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    if library == "cupy":
        return value.get()
    if hasattr(value, "__dlpack__") and not isinstance(value, numpy.ndarray):
        try:
            return numpy.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError):
            pass  # memory of a device, or a dtype that DLPack lacks: its own conversion may have it
    array = numpy.asarray(value)
    if array.dtype.name == "bfloat16":  # NumPy has it from JAX's ml_dtypes
        return array.astype(numpy.float32)
    if array.dtype.kind not in "biufc":
        raise Error(f"{what}: a {type(value).__name__} of {array.dtype} is no array of numbers", c.TG_E_ARGUMENT)
    return array


def like(array, sample):
    """A NumPy array converted to the type and device of `sample`."""
    library = _library_of(sample)
    if library == "torch":
        import torch
        return torch.from_numpy(array).to(sample.device)
    if library in ("jax", "jaxlib"):
        import jax
        return jax.device_put(array, next(iter(sample.devices())))
    if library == "cupy":
        import cupy
        with sample.device:
            return cupy.asarray(array)
    return array


def tensor_of(array, context):
    """A tg_tensor of a contiguous array, which it borrows."""
    if array.dtype not in DTYPE_OF:
        raise Error(f"arrays of {array.dtype} are not supported", c.TG_E_DTYPE)
    tensor, shape = c.tg_tensor(), shape_of(array.shape)
    context.check(lib.tg_tensor_wrap(context, DTYPE_OF[array.dtype], shape,
                                     array.ctypes.data_as(ctypes.c_void_p), tensor))
    return tensor


def array_of(tensor, context):
    """A copy of a host tensor; 16-bit formats that NumPy lacks become f32 or c64."""
    shape = tuple(tensor.shape.dim[:tensor.shape.ndim])
    dtype = tensor.dtype if tensor.dtype in NUMPY_OF else lib.tg_dtype_wide(tensor.dtype)
    array = numpy.empty(shape, NUMPY_OF[dtype])
    if array.size:
        wrapped = tensor_of(array, context)
        context.check(lib.tg_tensor_convert(context, tensor, wrapped))
    return array


def read_archive(path, context):
    """The arrays of an npy, safetensors or HDF5 file by name, and its metadata."""
    handle = ctypes.c_void_p()
    context.check(lib.tg_archive_read(context, str(path).encode(), handle))
    try:
        arrays = {lib.tg_archive_name(handle, i).decode():
                  array_of(lib.tg_archive_tensor(handle, i).contents, context)
                  for i in range(lib.tg_archive_count(handle))}
        meta = {lib.tg_archive_meta_key(handle, i).decode(): lib.tg_archive_meta_value(handle, i).decode()
                for i in range(lib.tg_archive_meta_count(handle))}
    finally:
        lib.tg_archive_destroy(handle)
    return arrays, meta


def write_archive(path, arrays, context, meta=None):
    """Arrays by name to a file; its ending names the format."""
    handle = ctypes.c_void_p()
    context.check(lib.tg_archive_create(context, handle))
    kept = {name: numpy.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        for name, array in kept.items():
            context.check(lib.tg_archive_add_view(handle, name.encode(), tensor_of(array, context)))
        for key, value in (meta or {}).items():
            context.check(lib.tg_archive_set_meta(handle, key.encode(), value.encode()))
        context.check(lib.tg_archive_write(context, str(path).encode(), handle))
    finally:
        lib.tg_archive_destroy(handle)
