"""Is an answer right? Exact rules for what answers mostly are; math-verify, in killable processes, for the rest.

    clean.py        one spelling for the many ways of writing a thing in LaTeX
    forms.py        percent signs, units, degrees, choice letters, names before an equals sign
    numbers.py      exact values of plain numbers
    structure.py    lists, tuples, sets, intervals
    compare.py      the rules in their order; three-valued, so that the cheap ones run without a process
    expressions.py  math-verify and exact arithmetic on single expressions; only in a worker
    pool.py         the caller's side of the worker processes; server.py theirs
    grade.py        from a response and its gold to a named outcome

Nothing here knows verl or Ray; sympy and math-verify are imported in the workers only.
"""
