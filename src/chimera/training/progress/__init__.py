"""Budgets and usage of a run, its history, and the callbacks that receive its progress."""
