"""Data sets, their partition among workers, and the order in which workers read them."""
