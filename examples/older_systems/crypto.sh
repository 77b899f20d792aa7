#!/bin/sh
# Cappuccino's study of five-minute bars, with its own command: examples/older_systems/crypto.sh [OPTIONS]
#
# Its line has --gpu 0 as well, which needs a card. Without prices in data/5m, made-up ones are taken.
set -e
test -d data/5m || slipstream data synthetic-crypto data/5m --bars "${BARS:-40000}"

slipstream tune crypto --n-trials "${TRIALS:-500}" --study-name cappuccino_5m_vectorized \
    --timeframe 5m --data-dir data/5m --n-envs 12 "$@"

slipstream study status cappuccino_5m_vectorized
