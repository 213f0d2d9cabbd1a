"""What a method of integration is, and the choice of one. The methods are in `flow.methods`."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from hadaflow.results.trajectory import Trajectory
    from hadaflow.runs.requests import Request


class Method:
    """Base of all methods: objects without state, one of each."""

    name: ClassVar[str]
    compilation: ClassVar[float] = 0.0  # seconds it takes to compile what runs, roughly

    def check(self, request: "Request", start: Any) -> None:
        """Refuse what it cannot do, in a sentence: for one who asks for it by name."""

    def suits(self, request: "Request", start: Any) -> str | None:
        """Why it is the one to take, or None if it is not."""
        raise NotImplementedError

    def local_tolerance(self, request: "Request") -> float:
        """Tolerance of one step that keeps the global promise `rtol`; the tests hold us to it."""
        raise NotImplementedError

    def run(self, request: "Request", start: Any) -> "Trajectory":
        """Carry out the request, from a start in scaled units or from matrices."""
        raise NotImplementedError

    def memory(self, request: "Request", start: Any) -> float:
        """Bytes that a run takes; refused if there are not so many."""
        raise NotImplementedError

    def seconds(self, request: "Request", start: Any) -> float:
        """Roughly, of one run, after compilation."""
        raise NotImplementedError

    def compile_seconds(self, request: "Request", start: Any) -> float:
        """Roughly, of the compilation before it; nothing where all is compiled, or in the cache."""
        return 0.0 if self.is_compiled(request, start) else self.compilation

    def is_compiled(self, request: "Request", start: Any) -> bool:
        """Is what runs at hand, as far as that can be said beforehand?"""
        return not self.compilation


@dataclasses.dataclass(frozen=True)
class Choice:
    """A method, why it was taken, and whether the caller insists on it."""

    method: Method
    reason: str
    forced: bool = False
