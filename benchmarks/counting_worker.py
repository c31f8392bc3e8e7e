"""A measured worker that counts how many of its settles found their row locked by somebody else."""

from typing import Any

from treadle.bench import work
from treadle.bench.meter import Meter
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.values import Ruling, Turn

met = [0]
turn, end = PostgresEngine.turn, Meter.end


def counted_turn(self: PostgresEngine, *arguments: Any, **options: Any) -> Turn:
    answer = turn(self, *arguments, **options)
    met[0] += sum(verdict.ruling is Ruling.BUSY for verdict in answer.verdicts)
    return answer


def end_with_count(self: Meter, **more: Any) -> None:
    end(self, busy=met[0], **more)


if __name__ == "__main__":
    PostgresEngine.turn = counted_turn  # type: ignore[method-assign]
    Meter.end = end_with_count  # type: ignore[method-assign]
    work.main()
