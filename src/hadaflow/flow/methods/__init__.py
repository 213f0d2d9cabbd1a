"""The methods of integration, one object of each."""

from hadaflow.flow.methods.closed_form import ClosedForm
from hadaflow.flow.methods.dual import Dual
from hadaflow.flow.methods.runge_kutta import Dopri8, Kvaerno5, Tsit5
from hadaflow.runs.methods import Method

CLOSED_FORM, DUAL, TSIT5 = ClosedForm(), Dual(), Tsit5()
_NAMED = (TSIT5, Dopri8(), Kvaerno5(), DUAL)
METHODS: dict[str, Method] = {method.name: method for method in _NAMED}  # that may be asked for
AUTOMATIC: tuple[Method, ...] = (DUAL, METHODS["kvaerno5"], TSIT5)  # in the order of preference
