"""What every family of plug-ins shares: errors, the registry, flat parameters, messages, the engine's protocol.

Nothing here knows a strategy, a model or an engine, and nothing here imports torch or ray.
"""
