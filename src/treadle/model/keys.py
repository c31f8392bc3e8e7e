"""Keys that keep other jobs away: for how long."""

from enum import StrEnum

from treadle.model.state import State


class Scope(StrEnum):
    """How long a key keeps other jobs of its tenant and task away."""

    PENDING = "pending"
    ACTIVE = "active"
    WINDOW = "window"
    EVER = "ever"

    def covers(self, state: State) -> bool:
        """Whether a job in `state` must hold its key; windows and evers outlive their job."""
        match self:
            case Scope.PENDING:
                return state is State.PENDING
            case Scope.ACTIVE:
                return not state.final
            case Scope.WINDOW | Scope.EVER:
                return True
