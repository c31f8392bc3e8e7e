"""A sample of the bad inputs that `python3 dev.py badinputs` makes by the thousand: each is refused in one line."""

from tests.cli import bad_inputs
from tests.support.sizes import size

NUMBER = size(400, long=10_000)
SAMPLE = range(0, 10_000, 10_000 // NUMBER)  # every 25th: that and the 7 kinds of mistakes have no common divisor


def test_a_sample_of_the_bad_inputs_is_refused_in_one_line():
    with bad_inputs.place() as folder:
        tried = [(seed, bad_inputs.tried(bad_inputs.made(seed), folder)) for seed in SAMPLE]
    assert [f"{seed}: {refusal.fault}: {refusal.err}" for seed, refusal in tried if refusal.fault] == []


def test_the_sample_has_every_command_and_the_same_number_is_the_same_input():
    inputs = [bad_inputs.made(seed) for seed in range(2000)]
    names = [name for name, _ in bad_inputs.leaves()]
    words = [" ".join(bad.words) for bad in inputs]
    assert [name for name in names if not any(word.startswith(name) for word in words)] == []
    assert inputs[::100] == [bad_inputs.made(seed) for seed in range(0, 2000, 100)]


def test_what_is_not_refused_is_found():
    with bad_inputs.place() as folder:
        faults = {
            name: bad_inputs.tried(bad_inputs.BadInput(words), folder).fault
            for name, words in {"right": ["jobs", "count"], "wrong": ["jobs", "lisst"]}.items()
        }
    assert faults == {"right": "exit code 0", "wrong": ""}
