"""What methods are called where people read: in figures and tables."""

_WORDS = {
    "sigma": "σ",
    "maml": "MAML",
    "imaml": "iMAML",
    "fomaml": "FOMAML",
    "reptile": "Reptile",
    "sgd": "SGD",
    "sea": "SEA",
}


def method_name(algorithm: str) -> str:
    """
    >>> method_name("sigma-imaml"), method_name("meta-sgd")
    ('σ-iMAML', 'Meta-SGD')
    """
    return "-".join(_WORDS.get(word, word.capitalize()) for word in algorithm.split("-"))
