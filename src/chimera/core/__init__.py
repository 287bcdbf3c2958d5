"""The common base of all families of plug-ins: errors, the registry, flat parameters, messages, the engine protocol.

This package imports no strategy, model or engine, and neither torch nor ray.
"""
