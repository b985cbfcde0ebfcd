"""Sampling a model on benchmarks, and comparing methods: what ``verl-grail eval`` and ``verl-grail compare`` do.

    protocol.py   the papers' evaluation protocols as values
    problems.py   problems of a benchmark from verl's parquet files
    engines.py    who samples: vLLM in this process, or a server that speaks OpenAI's protocol
    store.py      a run's folder: settings, one JSON line per sample, resuming
    run.py        samples -> graded records; their texts are on disk alone
    votes.py      majority vote over answers that the grader calls equal
    stats.py      pass@k, bootstrap intervals; pure
    summary.py    records -> one line per problem, and the metrics of a benchmark
    significance.py  Wilcoxon signed-rank, paired t, effect sizes, power; pure
    compare.py    folders of several methods -> differences and tests
    tables.py     Markdown and LaTeX; plot.py the picture

Knows no verl and no Ray, and grades by `verl_grail.grading`, as training does. vLLM, openai, pandas, scipy, statsmodels
and matplotlib (extra ``eval``) are imported where they are used.
"""


class EvaluationError(Exception):
    """Something that the caller has to mend; the message says what and how."""
