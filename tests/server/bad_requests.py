"""Requests that are wrong in one place, made from the API's own description; each must be refused by its place."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from tests.server.endpoints import ADMIN_ENDPOINTS, ENDPOINTS, PUBLIC, Endpoint, Place
from tests.server.raw import Answer, Raw, check

EVERY = (*ENDPOINTS, *ADMIN_ENDPOINTS)
JSON = (b"content-type", b"application/json")
HUGE = "x" * 5000
WRONG: dict[str, list[Any]] = {
    "string": [5, 1.5, True, [], {}, ["x"], {"a": "b"}, "", HUGE, "\x00", "a\x1b[31m", "\ud800"],
    "integer": ["x", "", 1.5, [], {}, True, "1e3", -(10**30), 10**30, "0x10", "１２three", "\x00"],
    "number": ["x", "", [], {}, True, "nan", "infinity"],
    "boolean": ["perhaps", "", [], {}, 2, "yes please", "\x00"],
    "array": ["x", {}, 5, True, [[]], [{}], [5]],
    "object": ["x", [], 5, True],
    "any": [],
}
"""By the type that the description says: what is never one that the field takes."""
IN_A_QUERY = {"string": ["", HUGE, "\x00", "a\x1b", "\x7f"], "integer": WRONG["integer"], "boolean": WRONG["boolean"]}
BROKEN = ["{", "[", "nul", "{'a': 1}", '{"a": 1,}', '{"a": NaN}', "", '"x"', "[]", "null", '{"a": 1, "a": 2}']
FREE = ("reason", "revision", "confirm", "text")  # any text, cleaned or looked for; any number, maybe another revision
ALSO = {"tz": "timezone", "cron": "schedule", "window": "key", "unique": "key", "on_conflict": "key"}
"""What an answer may name instead: the word of schedules; that there is both cron and every; that there is no key."""
CHECKS = ("/schedules/check",)  # what is asked for is what is wrong: that is its answer, and no refusal
IDS = ["x", "..", "0", "zzzz", "0199e0c5-6f3b-7d41-9c1e", "'; --", "%", "*", "x" * 300, "0199e0c5-0000", "é", "\x00"]


class Bad(NamedTuple):
    """A request, what is wrong with it, and which field the answer must name; None: nothing is at that address."""

    method: str
    target: str
    body: bytes
    wrong: str
    field: str | None

    def wanted(self, answer: Answer) -> bool:
        """Whether this is how it should be refused."""
        if self.field is None:
            return answer.status in (404, 405, 415, 422)
        if answer.status == 409:  # nothing is paused that could be resumed; another number of jobs fits
            return self.field == "until" or answer.json.get("field") == self.field == "expect"
        told = answer.status in (413, 414, 422) or (answer.status == 200 and self.target.endswith(CHECKS))
        problems = [str(one["field"]) for one in answer.json.get("problems", ())] if told else []
        every = [str(answer.json.get("field", "")), *problems] if told else []
        fields = {self.field, ALSO.get(self.field, self.field)}
        return any(one in fields or one.startswith((f"{self.field}.", f"{self.field}[")) for one in every)


class BadRequests:
    """An endless sequence; the same for the same seed."""

    def __init__(self, document: Any, place: Place, seed: int = 20261118) -> None:
        self._document = document
        self._place = place
        self._random = random.Random(seed)
        self._operations = [one for one in EVERY if self._described(one) and one.scope != PUBLIC]

    def __iter__(self) -> Iterator[Bad]:
        ways = [self._parameter, self._unknown_parameter, self._field, self._field, self._field, self._missing,
                self._unknown_field, self._broken, self._address]  # fmt: skip
        while True:
            endpoint = self._random.choice(self._operations)
            made = self._random.choice(ways)(endpoint, self._described(endpoint))
            if made is not None:
                yield made

    def _described(self, endpoint: Endpoint) -> Any:
        return self._document["paths"].get(endpoint.path, {}).get(endpoint.method.lower())

    # ------------------------------------------------------------------------------------------- what is wrong

    def _parameter(self, endpoint: Endpoint, operation: Any) -> Bad | None:
        taken = [one for one in operation.get("parameters", ()) if one["in"] == "query" and one["name"] not in FREE]
        if not taken:
            return None
        parameter = self._random.choice(taken)
        kind, schema = self._kind(parameter["schema"])
        values = [*IN_A_QUERY.get(kind, []), *(["nope"] if "enum" in schema else []), *_beyond(schema)]
        if not values:
            return None
        value = self._random.choice(values)
        if value == "" and "minLength" not in schema and kind == "string":
            return None
        return self._made(
            endpoint, f"query {parameter['name']}={value!r:.40}", parameter["name"], {parameter["name"]: value}
        )

    def _unknown_parameter(self, endpoint: Endpoint, operation: Any) -> Bad | None:
        name = self._random.choice(["colour", "limit[]", "__class__", "Limit", "page", "sort", "$where", "é", "a.b"])
        if name in [one["name"] for one in operation.get("parameters", ())]:
            return None
        return self._made(endpoint, f"unknown parameter {name}", name, {name: "1"})

    def _field(self, endpoint: Endpoint, operation: Any) -> Bad | None:
        form = self._form(operation)
        if not form.get("properties"):
            return None
        name = self._random.choice(list(form["properties"]))
        kind, schema = self._kind(form["properties"][name])
        values = [*WRONG.get(kind, []), *(["nope"] if "enum" in schema else []), *_beyond(schema)]
        values = [value for value in values if not (value == "" and not schema.get("minLength"))]
        if name in FREE:
            values = [value for value in values if value == HUGE or not isinstance(value, str | int)]
        if not values:
            return None
        value = self._random.choice(values)
        body = {**(endpoint.body or {}), name: value}
        return self._made(endpoint, f"{name}: {value!r:.40}", name, body=json.dumps(body))

    def _missing(self, endpoint: Endpoint, operation: Any) -> Bad | None:
        form = self._form(operation)
        required = [name for name in form.get("required", ()) if name in (endpoint.body or {})]
        if not required:
            return None
        name = self._random.choice(required)
        body = {key: value for key, value in endpoint.body.items() if key != name}
        return self._made(endpoint, f"without {name}", name, body=json.dumps(body))

    def _unknown_field(self, endpoint: Endpoint, operation: Any) -> Bad | None:
        form = self._form(operation)
        name = self._random.choice(["colour", "__proto__", "id", "is_admin", "Task", "lease_token", "é", "result_json"])
        if not form or name in form.get("properties", ()):
            return None
        body = {**(endpoint.body or {}), name: self._random.choice([1, "x", None, [], {}])}
        return self._made(endpoint, f"unknown field {name}", name, body=json.dumps(body))

    def _broken(self, endpoint: Endpoint, operation: Any) -> Bad | None:
        if not self._form(operation):
            return None
        text = self._random.choice(BROKEN)
        return self._made(endpoint, f"broken body {text!r}", None, body=text)

    def _address(self, endpoint: Endpoint, operation: Any) -> Bad | None:
        if "{" not in endpoint.path:
            return None
        id_ = self._random.choice(IDS)
        nowhere = quote(f"{id_} nowhere", safe="")
        place = Place(quote(id_, safe=""), nowhere, schedule_id=nowhere)
        made = self._made(endpoint, f"address {id_!r:.40}", None)
        return made._replace(target=endpoint.url(place)) if endpoint.status != 409 else None

    # ------------------------------------------------------------------------------------------------- means

    def _made(
        self, endpoint: Endpoint, wrong: str, field: str | None, query: Any = None, body: str | None = None
    ) -> Bad:
        text = body if body is not None else "" if endpoint.body is None else json.dumps(endpoint.body)
        query = {**endpoint.query, **(query or {})}
        target = endpoint.url(self._place) + (f"?{urlencode(query)}" if query else "")
        return Bad(endpoint.method, target, text.encode("utf-8", "surrogatepass"), f"{endpoint}: {wrong}", field)

    def _form(self, operation: Any) -> Any:
        content = operation.get("requestBody", {}).get("content", {})
        return self._resolved(next(iter(content.values()))["schema"]) if content else {}

    def _resolved(self, schema: Any) -> Any:
        while "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    def _kind(self, schema: Any) -> tuple[str, Any]:
        """The type of a value, if there is one beside null."""
        schema = self._resolved(schema)
        choices = [self._resolved(one) for one in schema.get("anyOf", [schema])]
        kinds = [one for one in choices if one.get("type") != "null"]
        return (kinds[0].get("type", "any"), kinds[0]) if len(kinds) == 1 else ("any", {})


def _beyond(schema: Any) -> list[Any]:
    """Values outside of the limits that the description has."""
    found: list[Any] = []
    if "maximum" in schema:
        found += [schema["maximum"] + 1, schema["maximum"] * 1000 + 7]
    if "minimum" in schema:
        found += [schema["minimum"] - 1, schema["minimum"] - 10**12]
    if "maxLength" in schema:
        found.append("y" * (schema["maxLength"] + 1))
    if schema.get("maxItems"):
        found.append(["x"] * (schema["maxItems"] + 1))
    return found


def refused(
    raw: Raw, document: Any, place: Place, token: str, number: int
) -> tuple[list[tuple[Bad, Answer]], Counter[int]]:
    """Send so many; those that were not refused as they should be, and all statuses."""
    wrong, statuses = [], Counter[int]()
    requests = iter(BadRequests(document, place))
    seen: set[tuple[str, str, bytes]] = set()
    for _ in range(number * 20):
        bad = next(requests)
        if bad[:3] in seen and number < 2000:  # distinct ones, as far as there are so many
            continue
        seen.add(bad[:3])
        headers = [(b"authorization", f"Bearer {token}".encode())] + ([JSON] if bad.body else [])
        answer = raw.ask(bad.method, bad.target, headers, bad.body)
        statuses[answer.status] += 1
        try:
            check(answer, bad)
            fine = bad.wanted(answer) and b"Traceback" not in answer.body
        except AssertionError:
            fine = False
        if not fine:
            wrong.append((bad, answer))
        if statuses.total() == number:
            break
    return wrong, statuses
