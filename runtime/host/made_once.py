"""An attribute that is made when it is first asked for.

`functools.cached_property` of Python 3.11 has one lock for all objects of a class: the first use of one model waits for
that of another, and a child that was forked meanwhile waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

from pyc.runtime.host.forks import ForkSafeLock

Value = TypeVar("Value")


class made_once(Generic[Value]):  # noqa: N801 -- it is used as a decorator
    """The decorator of a method that makes the attribute of its name, one thread of an object at a time.

    A child that was forked meanwhile makes its own. The thread that makes it may come again, in a signal handler: what
    is there first stays.
    """

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Value: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> Self | Value:
        if instance is None:
            return self
        attributes = instance.__dict__  # where the value is found from then on, without this method
        key = f"making {self._name}"
        making: ForkSafeLock = attributes.setdefault(key, ForkSafeLock())
        with making.lock:
            if self._name in attributes:
                value = attributes[self._name]
            else:
                value = attributes.setdefault(self._name, self._make(instance))
        attributes.pop(key, None)  # not where the making failed: others may wait for the lock, and make it next
        return value  # type: ignore[no-any-return]  # what this method put there
