"""The conformance kit: what every engine promises, tried on every engine."""
