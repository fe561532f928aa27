"""Settings of runs: YAML files, mappings and overrides, as the library's."""
import ctypes
import math
import os
import re
from collections.abc import Mapping

from ._library import Error, c, lib, text


def in_yaml(value, key):
    """A value as YAML writes it in one line; numbers and arrays of NumPy and PyTorch as Python's."""
    if math.prod(getattr(value, "shape", ())) > 1000:
        raise Error(f"{key}: an array {tuple(value.shape)} is no setting; save x and y in a file "
                    "(numpy.savez) and name it in data.train_file", c.TG_E_CONFIG)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(in_yaml(item, key) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (str, int, os.PathLike)) or hasattr(value, "__index__"):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    raise Error(f"{key}: a {type(value).__name__} is no setting; numbers, text, booleans and lists are",
                c.TG_E_CONFIG)


def flat(settings, prefix=""):
    """{"opt": {"lr": 1}} and {"opt.lr": 1} as [("opt.lr", "1")]."""
    pairs = []
    if not isinstance(settings, Mapping):
        raise Error(f"settings: a {type(settings).__name__} is no mapping such as {{\"opt.n_epochs\": 20}}",
                    c.TG_E_CONFIG)
    for key, value in settings.items():
        name = f"{prefix}{key}"
        pairs += flat(value, name + ".") if isinstance(value, Mapping) else [(name, in_yaml(value, name))]
    return pairs


class Settings:
    """A tg_settings of a YAML file or a mapping, with overrides."""

    def __init__(self, context, source=None, overrides=None):
        self._as_parameter_ = handle = ctypes.c_void_p()
        if source is None or isinstance(source, Mapping):
            context.check(lib.tg_settings_create(context, handle))
        else:
            context.check(lib.tg_settings_read_yaml(context, os.fspath(source).encode(), handle))
        context.own(self, lib.tg_settings_destroy, handle)
        pairs = flat(source) if isinstance(source, Mapping) else []
        for key, value in pairs + flat(overrides or {}):
            context.check(lib.tg_settings_set(handle, key.encode(), value.encode(), b"Python"))


def parsed(value):
    """The text of a setting as the Python value it stands for."""
    if value.startswith("[") and value.endswith("]"):
        items = value[1:-1].strip()
        return [parsed(item.strip()) for item in items.split(",")] if items else []
    words = {"null": None, "true": True, "false": False}
    if value in words:
        return words[value]
    if re.fullmatch(r"[-+]?\d+", value):
        return int(value)
    try:
        return float(value)
    except ValueError:
        return value


def as_dict(handle):
    """All settings of a handle, nested by section."""
    result = {}
    for index in range(lib.tg_settings_count(handle)):
        *sections, name = text(lib.tg_settings_key(handle, index)).split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = parsed(text(lib.tg_settings_value(handle, index)))
    return result
