"""Image data: where it lives, how it gets there, how it is split into tasks.

Reading needs numpy alone, preparing needs Pillow (`pip install 'shrinx[images]'`).
"""

from .location import data_folder as data_folder
from .miniimagenet import MiniImageNet as MiniImageNet
from .miniimagenet import load_miniimagenet as load_miniimagenet
from .omniglot import Omniglot as Omniglot
from .omniglot import load_omniglot as load_omniglot
from .splits import AlphabetSplit as AlphabetSplit
from .splits import FewShotSplit as FewShotSplit
from .splits import RotatedClasses as RotatedClasses
from .splits import alphabet_split as alphabet_split
from .splits import few_shot_split as few_shot_split
