"""Tests of an engine are collected where its library is installed."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("ray") else ["test_ray*.py"]
