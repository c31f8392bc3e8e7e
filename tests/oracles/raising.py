"""What pytest.raises does, where there is no pytest."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Raised:
    value: Any = None


@contextmanager
def raises(kind: type[Exception]) -> Iterator[Raised]:
    """The block must raise this; `value` is what it raised."""
    raised = Raised()
    try:
        yield raised
    except kind as error:
        raised.value = error
        return
    raise AssertionError(f"{kind.__name__} was not raised")
