"""Imported by the process that workers are forked from: loads sympy and fills the parser's tables, for a second.

A worker that had to do that itself would have little left of a short deadline.
"""

from verl_grail.grading import work
from verl_grail.grading.expressions import compare_expressions

for _gold, _pred in ((r"\frac{x^2}{2}+\sqrt{3}", r"\frac{1}{2}x^2+3^{1/2}"), ("0 < x < 1", "(0, 1)"), (r"\pi", "3.14")):
    compare_expressions(_gold, _pred)

work.become_fork_server()
