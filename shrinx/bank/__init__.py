"""Ship only what changed: adapted tasks on disk, served from one copy of the model."""

from .adapting import TaskReport as TaskReport
from .adapting import adapt_task as adapt_task
from .bank import Bank as Bank
from .bank import TaskInfo as TaskInfo
from .errors import BankError as BankError
from .errors import DamagedError as DamagedError
from .posterior import calibration as calibration
from .posterior import laplace as laplace
from .serve import Prediction as Prediction
from .verify import Damage as Damage
