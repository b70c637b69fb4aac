"""Plain data to attrs classes and back, for the server's TOML and for bodies of requests: strict, without casts.

Unknown keys are errors with a suggestion, "3" is no number, and bytes are base64 text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from types import GenericAlias
from typing import Any, TypeVar, get_args

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn

from composer_core.errors import ConfigError, did_you_mean

T = TypeVar("T")
MISFITS = (cattrs.BaseValidationError, ValueError, TypeError, KeyError)


def structured(data: Any, cls: type[T], what: str, where: str | None = None) -> T:
    """`data`, which messages call `what`, as `cls`.

    Raises:
        ConfigError: something does not fit; all of it in one message, each with its place.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{what} is no table of keys and values", where=where, found=type(data).__name__)
    try:
        return _CONVERTER.structure(data, cls)
    except ConfigError:
        raise
    except MISFITS as error:
        found = "; ".join(map(_placed, cattrs.transform_error(error, "", _explain)))
        raise ConfigError(f"{what} does not fit", where=where, found=found) from error


def plain(value: Any) -> Any:
    """`value` as what JSON can say."""
    return _CONVERTER.unstructure(value)


def _placed(line: str) -> str:
    """cattrs names the place last."""
    text, _, place = line.rpartition(" @ ")
    return f"{place.removeprefix('.')}: {text}".removeprefix(": ")


def _explain(error: BaseException, hint: type | None) -> str:
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [a.name for a in attrs.fields(error.cl)]
        return "; ".join(f"unknown key {key!r}: {did_you_mean(key, known)}" for key in sorted(error.extra_fields))
    if isinstance(error, KeyError):
        return f"required key {error} is missing"
    if type(error) is ValueError and error.args:  # a validator of attrs gives its text, then what it looked at
        return str(error.args[0])
    return str(error)


def _same(data: Any, cls: Any) -> Any:
    if cls is float and type(data) is int:
        return float(data)
    if type(data) is not cls:
        raise TypeError(f"expected {cls.__name__}, found {type(data).__name__}")
    return data


def _bytes(data: Any, _cls: Any) -> bytes:
    if not isinstance(data, str):
        raise TypeError(f"expected base64 text, found {type(data).__name__}")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"no base64 text: {error}") from error


def _list(data: Any, cls: Any) -> Any:
    if not isinstance(data, list | tuple):
        raise TypeError(f"expected a list, found {type(data).__name__}")
    return tuple(_CONVERTER.structure(list(data), GenericAlias(list, get_args(cls)[0])))  # type: ignore[arg-type]


def _converter() -> cattrs.Converter:
    made = cattrs.Converter(detailed_validation=True)
    for kind in (int, float, str, bool):
        made.register_structure_hook(kind, _same)
    made.register_structure_hook(bytes, _bytes)
    made.register_unstructure_hook(bytes, lambda data: base64.b64encode(data).decode())
    made.register_structure_hook_func(lambda cls: get_args(cls)[1:] == (...,), _list)
    made.register_structure_hook_factory(
        attrs.has, lambda cls: make_dict_structure_fn(cls, made, _cattrs_forbid_extra_keys=True)
    )
    return made


_CONVERTER = _converter()
