"""Which characters and drawings of Omniglot are for meta-training, validation and test, as functions of a seed.

Quotations are from the paper's appendix E.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Shaped

from .omniglot import DRAWINGS

NUM_TEST_ALPHABETS = 10
CLASSES_PER_ALPHABET = 20
NUM_SUPPORT_DRAWINGS = 15

NUM_TRAIN_CHARACTERS = 1100
NUM_VALIDATION_CHARACTERS = 100


@dataclass(frozen=True)
class AlphabetSplit:
    """One 20-way task per alphabet.

    **Attributes:**

    - `train`, `validation`, `test`: characters of each alphabet's task, as rows of `Omniglot.images`.
    - `support`, `query`: drawings to adapt to and to be judged by, the same for every character.

    The support images of training task t are `omniglot.images[split.train[t]][:, split.support]`.
    """

    train: Int[np.ndarray, "train 20"]
    validation: Int[np.ndarray, "validation 20"]
    test: Int[np.ndarray, "test 20"]
    support: Int[np.ndarray, " support"]
    query: Int[np.ndarray, " query"]


def alphabet_split(
    alphabet: Shaped[np.ndarray, " characters"],
    *,
    seed: int,
    num_train: int = 30,
    num_instances: int = NUM_SUPPORT_DRAWINGS,
) -> AlphabetSplit:
    """The tasks of augmented Omniglot (appendix E.1).

    "takes the 46 Omniglot alphabets that have 20 or more character classes and creates one 20-way classification task
    for each alphabet by sampling 20 character classes from that alphabet. [...] Of the 46 alphabets, 10 are set aside
    as a held-out test set, and the remainder are split between train and validation. The assignments of alphabets to
    splits and of classes to tasks is determined by a random seed [...] For each character class, there are 20 images
    in total, 15 of which are set aside for training (i.e., task adaptation) and 5 for validation. This split is kept
    consistent across all experiments."

    In the large-data regime there are 30 training alphabets and 15 instances, in the small-data regime "5, 10, 15, and
    20 training alphabets and 1, 3, 5, 10, and 15 training instances per character class".

    Our choices where the paper is silent: drawings 1 to 15 are support, 16 to 20 query; `num_instances` takes the first
    of the 15; all alphabets that are neither training nor test are validation. With the same seed, fewer training
    alphabets are a part of more, and the test alphabets and the classes of every alphabet stay the same.

    **Arguments:**

    - `alphabet`: the alphabet of each character, `Omniglot.alphabet`.
    - `seed`: of the experiment.
    - `num_train`: number of training alphabets, the paper's T.
    - `num_instances`: support drawings per character, the paper's K.

    >>> import numpy as np
    >>> split = alphabet_split(np.repeat([f"alphabet {n:02d}" for n in range(46)], 25), seed=0)
    >>> split.train.shape, split.validation.shape, split.test.shape
    ((30, 20), (6, 20), (10, 20))
    """
    if not 1 <= num_instances <= NUM_SUPPORT_DRAWINGS:
        raise ValueError(f"`num_instances` must be 1 to {NUM_SUPPORT_DRAWINGS}, got {num_instances}.")
    names, counts = np.unique(alphabet, return_counts=True)
    names = names[counts >= CLASSES_PER_ALPHABET]
    if not 1 <= num_train < len(names) - NUM_TEST_ALPHABETS:
        raise ValueError(
            f"`num_train` must be at least 1 and leave {NUM_TEST_ALPHABETS} alphabets for test and one for validation; "
            f"got {num_train} of {len(names)} alphabets with {CLASSES_PER_ALPHABET} or more characters."
        )
    random = _random(seed)
    tasks = np.stack([random.permutation(np.flatnonzero(alphabet == name))[:CLASSES_PER_ALPHABET] for name in names])
    tasks = tasks[random.permutation(len(names))]
    last_train = NUM_TEST_ALPHABETS + num_train
    return AlphabetSplit(
        train=tasks[NUM_TEST_ALPHABETS:last_train],
        validation=tasks[last_train:],
        test=tasks[:NUM_TEST_ALPHABETS],
        support=np.arange(num_instances),
        query=np.arange(NUM_SUPPORT_DRAWINGS, DRAWINGS),
    )


@dataclass(frozen=True)
class RotatedClasses:
    """Classes that are a character turned by so many quarter turns; the four turns of a character are neighbours."""

    character: Int[np.ndarray, " classes"]
    quarter_turns: Int[np.ndarray, " classes"]


@dataclass(frozen=True)
class FewShotSplit:
    """The classes that tasks are drawn from."""

    train: RotatedClasses
    validation: RotatedClasses
    test: RotatedClasses


def few_shot_split(num_characters: int, *, seed: int) -> FewShotSplit:
    """The classes of few-shot Omniglot.

    "The dataset is augmented by creating new characters that are rotations of each of the existing characters by 0, 90,
    180, or 270 degrees. [...] Character classes are partitioned into separate meta-train and meta-test splits".

    The paper gives no numbers. Ours are those of Finn et al. (2017), whose network it uses: 1,200 characters for
    meta-training, 100 of them kept for validation, the other 423 for test, regardless of alphabet, with rotations in
    all three. The rotations of a character are in the same split. Which drawings are support and which are query is
    drawn task by task.

    **Arguments:**

    - `num_characters`: `len(omniglot.images)`.
    - `seed`: of the experiment.

    >>> split = few_shot_split(1623, seed=0)
    >>> [part.character.size for part in (split.train, split.validation, split.test)]
    [4400, 400, 1692]
    """
    last_validation = NUM_TRAIN_CHARACTERS + NUM_VALIDATION_CHARACTERS
    if num_characters <= last_validation:
        raise ValueError(f"Few-shot Omniglot needs more than {last_validation} characters, got {num_characters}.")
    characters = _random(seed).permutation(num_characters)
    parts = np.split(characters, [NUM_TRAIN_CHARACTERS, last_validation])
    return FewShotSplit(*map(_with_rotations, parts))


def _with_rotations(characters: Int[np.ndarray, " characters"]) -> RotatedClasses:
    return RotatedClasses(np.repeat(characters, 4), np.tile(np.arange(4), len(characters)))


def _random(seed: int) -> np.random.RandomState:
    # Its stream is frozen for good (numpy's NEP 19), a Generator's is not: a seed means the same split for everybody.
    return np.random.RandomState(seed)
