"""Workers: the actor that holds a model and data, and what it computes, packs and sends."""
