"""Getting the core's inputs out of a live, sharded model.

`schedule` plans micro-batches for all ranks on the driver, `request` is what travels to the workers, `hf` knows the
parts of a Hugging Face model, `hooks` captures the leaf and replaces the output layer for the length of a pass, and
`fsdp` runs the pass on verl's FSDP engine.
"""
