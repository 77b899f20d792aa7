"""Cappuccino's and FinRL_Crypto's environment classes and files, on our `portfolio`."""

from slipstream.compat.cappuccino.crypto_env import (
    CryptoEnvAlpaca,
    VectorizedCryptoEnvAlpaca,
    VectorizedCryptoEnvAlpacaOptimized,
)
from slipstream.compat.cappuccino.finrl_files import import_finrl

__all__ = [
    "CryptoEnvAlpaca",
    "VectorizedCryptoEnvAlpaca",
    "VectorizedCryptoEnvAlpacaOptimized",
    "import_finrl",
]
