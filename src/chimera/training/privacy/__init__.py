"""A private run: what clients do to their updates, what servers see of them, and what that guarantees.

See docs/explanation/privacy.md.
"""
