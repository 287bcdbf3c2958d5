"""Pools of workers: how the coordinator finds and reaches workers."""
