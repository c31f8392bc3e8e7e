"""An enqueue whose answer was lost is repeated: the same id is the same request, whatever the key's rule says."""

import pytest

from tests.support.marks import any_store
from treadle import Treadle, Unique

pytestmark = any_store


@pytest.fixture
def app(store_url: str):
    app = Treadle(store_url)
    yield app
    app.close()


@pytest.mark.parametrize("on_conflict", ["first", "raise", "replace"])
def test_a_repeated_enqueue_of_the_same_id_does_not_conflict_with_itself(app: Treadle, on_conflict: str) -> None:
    @app.task
    def greet(name: str) -> None: ...

    rule = Unique("active", on_conflict=on_conflict)
    same = greet.using(id="01900000-0000-7000-8000-000000000001", key="k", unique=rule)

    first = same.enqueue("Ada")
    again = same.enqueue("Ada")

    assert again == first
    assert app.get(first.id).revision == 0


@pytest.mark.parametrize("payload", [0, False, "", [], 0.0])
def test_a_payload_that_counts_as_false_is_stored_as_it_is(app: Treadle, payload: object) -> None:
    @app.task
    def take(payload) -> None: ...

    job = app.enqueue("take", payload)

    assert app.get(job.id).payload == payload
    assert type(app.get(job.id).payload) is type(payload)
