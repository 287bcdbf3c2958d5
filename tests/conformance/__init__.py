"""The conformance kit: the promises of engines, tested on every engine."""
