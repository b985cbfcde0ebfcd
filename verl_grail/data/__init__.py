"""Data sets of the papers as verl's parquet files, and a check of any such file. Knows no verl and no torch.

sources   the public data sets: where they are, and what one of their rows says
build     from such rows to verl's schema: instruction, gold, expert solutions, filters, splits
files     reading and writing tables; the hub, or a local file in its place
check     what is wrong with a file that a run is about to use
"""
