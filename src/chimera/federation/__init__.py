"""Federation: nodes that dial out to a hub, keep their data and set their own rules."""
