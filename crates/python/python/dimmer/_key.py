"""What distinguishes policies, for the keys of tasks.

Policies that can behave differently have different keys, and equal ones have equal keys in each
process of one version of Python. So a key consists of plain data and of code: addresses and the
order of hashes do not belong to it. Functions and constants outside of a class are not followed.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from functools import cached_property
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from . import Policy, PolicyLike, policies

_SCALARS = (type(None), type(...), bool, int, float, complex, str)
#: Modules of base classes that say nothing about a policy.
_OF_PYTHON = ("abc", "builtins", "typing")
#: What Python keeps in a class for itself, besides data with names such as `__doc__`.
_OF_CLASSES = ("_abc_impl", "__annotate__", "__annotate_func__")

#: Names of attributes, and their values.
_Attributes = Iterable[tuple[str, Any]]


def policy_key(policy: PolicyLike) -> Any:
    """What distinguishes a policy, for ``json.dumps``.

    For an object: its classes, and what ``pickle`` takes of it. An attribute ``key`` replaces both.
    """
    if policy is None or isinstance(policy, str):
        if policy is not None and policy not in policies():
            raise ValueError(f"unknown policy `{policy}`, expected one of {', '.join(policies())}")
        return policy
    of = policy if isinstance(policy, type) else type(policy)
    name = _name(policy, of)
    if hasattr(policy, "key"):
        return ["key", name, _own_key(policy.key, of)]
    classes = [_class(one, of) for one in of.__mro__ if _is_own(one)]
    if isinstance(policy, type):
        return ["class", name, classes]
    return ["object", name, classes, _values(_state(policy), of)]


def _name(policy: Any, of: type) -> str:
    """The policy's name in results."""
    name = getattr(policy, "name", None)
    return name if isinstance(name, str) else of.__name__


def _own_key(key: Any, of: type) -> str:
    if not isinstance(key, str):
        found = type(key).__name__
        raise TypeError(f"policy {of.__name__}: key: expected a text, not {found}")
    return key


def _is_own(one: type) -> bool:
    return one is not Policy and one.__module__ not in _OF_PYTHON


def _unknown(what: str, of: type) -> ValueError:
    return ValueError(
        f"policy {of.__name__}: {what}, so it needs an attribute `key`, a text that is another one "
        "for another behavior"
    )


def _state(policy: Any) -> Iterator[tuple[str, Any]]:
    """What ``pickle`` takes of an object, but for its class: values by their names."""
    of = type(policy)
    try:
        reduced = policy.__reduce_ex__(4)
    except Exception as cause:
        raise _unknown("pickle does not accept it", of) from cause
    if isinstance(reduced, str):
        raise _unknown("pickle takes only its name", of)
    maker, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    yield "its maker", getattr(maker, "__qualname__", maker)
    for number, argument in enumerate(arguments):
        if argument is not of:
            yield f"argument {number}", argument
    # With `__slots__`, it is a pair: of the attributes in `__dict__`, and of those in slots.
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if all(map(_are_attributes, parts)):
        for part in parts:
            yield from (part or {}).items()
    else:
        yield "its state", state
    yield "its items", [list(items or ()), list(pairs or ())]


def _are_attributes(part: Any) -> bool:
    is_dict = isinstance(part, dict)
    return part is None or (is_dict and all(isinstance(name, str) for name in part))


def _class(one: type, of: type) -> Any:
    """What distinguishes a class: its source, its data, and its functions."""
    try:
        source = inspect.getsource(one)
    except (OSError, TypeError):
        raise _unknown("its source is not known", of) from None
    data: dict[str, Any] = {}
    functions = []
    for name, value in sorted([*vars(one).items(), *_fields(one)], key=lambda pair: pair[0]):
        found = _functions(value)
        if found:
            functions += [(name, function) for function in found]
        elif not _is_of_python(name, value):
            data[name] = value
    is_dataclass = "__dataclass_fields__" in vars(one)
    written = [
        [name, _function(name, function, of)]
        for name, function in functions
        if name not in _OF_CLASSES
        and function.__module__ not in _OF_PYTHON
        and not (is_dataclass and _is_generated(function))
    ]
    return [source, _values(data.items(), of), written]


def _fields(one: type) -> Iterator[tuple[str, Any]]:
    """What a dataclass makes attributes from; with slots, it is in no attribute of the class."""
    for name, field in vars(one).get("__dataclass_fields__", {}).items():
        if field.default is not MISSING:
            yield f"default of {name}", field.default
        factory = field.default_factory
        if factory is not MISSING:
            is_class = isinstance(factory, type)
            yield f"default_factory of {name}", factory.__qualname__ if is_class else factory


def _functions(value: Any) -> list[FunctionType]:
    """The functions that a class attribute consists of; none for data."""
    if isinstance(value, (staticmethod, classmethod)):
        return _functions(value.__func__)
    if isinstance(value, cached_property):
        return _functions(value.func)
    if isinstance(value, property):
        parts = (value.fget, value.fset, value.fdel)
        return [function for part in parts for function in _functions(part)]
    return [value] if isinstance(value, FunctionType) else []


def _is_of_python(name: str, value: Any) -> bool:
    """Whether Python, rather than the policy's author, gave a class this attribute."""
    if name in _OF_CLASSES or isinstance(value, (GetSetDescriptorType, MemberDescriptorType)):
        return True
    return _is_dunder(name) and not callable(value)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_generated(function: FunctionType) -> bool:
    """Whether ``dataclass`` has written this function, from the attributes of the class."""
    return bool(inspect.unwrap(function).__code__.co_filename == "<string>")


def _function(name: str, function: FunctionType, of: type) -> Any:
    """What distinguishes a function: its code, and the values that it was made with."""
    variables = zip(function.__code__.co_freevars, function.__closure__ or ())
    values: dict[str, Any] = {
        f"{name}, variable {variable}": list(_contents(cell))
        for variable, cell in variables
        if not _is_dunder(variable)
    }
    values[f"{name}, code"] = function.__code__
    values[f"{name}, defaults"] = [function.__defaults__, function.__kwdefaults__]
    return _values(values.items(), of)


def _contents(cell: Any) -> Iterator[Any]:
    """The value of a variable; nothing if it has none yet."""
    try:
        yield cell.cell_contents
    except ValueError:
        return


def _values(attributes: _Attributes, of: type) -> dict[str, Any]:
    """Attributes as data for ``json.dumps``."""
    found = {}
    for name, value in attributes:
        try:
            found[name] = _plain(value)
        except _Foreign as foreign:
            what = f"`{name}` has a value of type {foreign}, which is not plain data"
            raise _unknown(what, of) from None
        except RecursionError:
            raise _unknown(f"`{name}` contains itself", of) from None
    return found


class _Foreign(Exception):
    """The type of a value that is not plain data."""


def _plain(value: Any) -> Any:
    """A value as data for ``json.dumps``: equal for equal values, with their types."""
    of = type(value)
    if of in _SCALARS:
        return value if value is None or of in (bool, int, str) else [of.__name__, repr(value)]
    if of is bytes:
        return ["bytes", value.hex()]
    if of in (list, tuple):
        return [of.__name__, *map(_plain, value)]
    if of is dict:
        return ["dict", *([_plain(key), _plain(own)] for key, own in value.items())]
    if of in (set, frozenset):
        return [of.__name__, *sorted(map(_plain, value), key=json.dumps)]
    if of is slice:
        return ["slice", _plain(value.start), _plain(value.stop), _plain(value.step)]
    if of is CodeType:
        return ["code", value.co_code.hex(), value.co_names, _plain(value.co_consts)]
    if _is_of_numpy(value) and not value.dtype.hasobject:
        return [of.__name__, str(value.dtype), value.shape, value.tobytes().hex()]
    raise _Foreign(of.__name__)


def _is_of_numpy(value: Any) -> bool:
    """Whether a value is an array or a scalar of numpy, which this module does not import."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic))
