"""The public names, each written once: `__init__` imports them from here on first use."""

from . import (
    expressions as expressions,
    losses as losses,
    optimizers as optimizers,
    starts as starts,
)
from .algebra.bases import (
    AbelianGroup as AbelianGroup,
    Sylvester as Sylvester,
    cyclic as cyclic,
    diagonalizes_softmax as diagonalizes_softmax,
)
from .algebra.transforms import walsh_hadamard as walsh_hadamard
from .base.cache import disable_cache as disable_cache, enable_cache as enable_cache
from .base.errors import InputError as InputError
from .descent.descend import descend as descend
from .descent.race import Race as Race, race as race
from .descent.resuming import resume as resume
from .descent.stability import stability_limit as stability_limit
from .flow.estimates import Estimate as Estimate, estimate as estimate
from .flow.foretelling import (
    CollapsePrediction as CollapsePrediction,
    predict_collapse as predict_collapse,
)
from .flow.places import Place as Place
from .flow.solver import solve as solve
from .lab.atlas import Atlas as Atlas, atlas as atlas
from .lab.certify import Certificate as Certificate, certify as certify, recheck as recheck
from .lab.hunt import Hunt as Hunt, hunt as hunt
from .lab.portrait import portrait as portrait
from .lab.rise import Rise as Rise, worst_rise as worst_rise
from .metrics.maxmargin import MaxMargin as MaxMargin, margins as margins, max_margin as max_margin
from .metrics.measures import measure as measure, metric_names as metric_names, rate as rate
from .model.closed_forms import (
    fixed_point as fixed_point,
    linearized as linearized,
    mse_exact as mse_exact,
)
from .model.labels import hierarchical_labels as hierarchical_labels
from .model.starts import (
    distance_from_hadamard as distance_from_hadamard,
    gaussian as gaussian,
    hadamard as hadamard,
    lift as lift,
    matched_spectrum as matched_spectrum,
    project as project,
    random_hadamard as random_hadamard,
    uniform_spectrum as uniform_spectrum,
)
from .model.states import (
    Parameters as Parameters,
    Spectrum as Spectrum,
    circulant as circulant,
    parameters as parameters,
    spectrum as spectrum,
)
from .model.ufm import UFM as UFM
from .results.batch import Batch as Batch, load as load
from .results.compare import compare as compare
from .results.trajectory import Trajectory as Trajectory
from .runs.targets import (
    Collapse as Collapse,
    Norm as Norm,
    PathLength as PathLength,
    PredictedCollapse as PredictedCollapse,
    Steady as Steady,
    Time as Time,
)

__version__: str
_began: float
