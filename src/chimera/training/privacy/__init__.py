"""Private runs: the protection of clients' updates, their sum on servers, and the guarantee.

See docs/explanation/privacy.md.
"""
