"""Is every process of a run able to do its part? Facts are gathered where they hold, and judged in one place.

probe     what one process can say of itself; needs nothing but the standard library to be sent to another node
cluster   runs the probe in every role on every node of a Ray cluster
findings  from reports to findings: what is wrong, where, and what mends it
"""
