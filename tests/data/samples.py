"""Small files with the columns of the real data sets; problems and solutions are our own."""

from __future__ import annotations

DEEPMATH = [
    {
        "question": f"Compute the derivative of $x^{{{n}}}$ at $x = 1$.",
        "final_answer": str(n),
        "difficulty": 2.0,
        "topic": "Mathematics -> Calculus",
        "r1_solution_1": f"<think>\npower rule\n</think>\n\nThe answer is \\boxed{{{n}}}.",
        "r1_solution_2": "",
        "r1_solution_3": f"It is $\\boxed{{{n}}}$.",
    }
    for n in range(2, 42)
]
NUMINA = [
    {
        "source": source,
        "problem": problem,
        "solution": solution,
        "messages": [{"role": "user", "content": problem}, {"role": "assistant", "content": solution}],
    }
    for source, problem, solution in (
        ("amc_aime", "Solve $x + 2 = 5$.", r"Subtract two: $x = \boxed{3}$."),
        ("olympiads", "Prove that $2$ is prime.", "It has no divisor but itself and one."),
        ("cn_k12", "Solve $2x = 8$.", r"First \boxed{2}, no: $x = \boxed{4}$."),
        ("amc_aime", "  solve  $x+2=5$ . ", r"Again $\boxed{3}$."),
        ("cn_k12", "Name a number.", r"\boxed{\text{any } \mathfrak{q} \diamond}"),
    )
]
OLYMPIAD = [
    {"id": 1, "question": "Two roots?", "final_answer": ["1", "2"], "solution": ["..."]},
    {"id": 2, "question": "One root?", "final_answer": ["7"], "solution": ["..."]},
]
PLAIN = {
    "math500": {"problem": "One plus one?", "solution": "Two.", "answer": "2", "level": 1, "unique_id": "a/1"},
    "aime2024": {"id": 60, "problem": "One plus one?", "solution": "Two.", "answer": "2", "year": "2024"},
    "amc2023": {"id": 0, "question": "One plus one?", "answer": 2.0, "url": "x"},
    "minerva": {"question": "One plus one?", "answer": "2"},
    "collegemath": {"question": "One plus one?", "answer": "2", "data_topic": "arithmetic"},
    "aime2026": {"problem_idx": 1, "problem": "One plus one?", "answer": 2},
    "hmmt_feb2025": {"problem_idx": 1, "problem": "One plus one?", "answer": "2", "problem_type": ["Algebra"]},
    "hmmt_feb2026": {"problem_idx": 1, "problem": "One plus one?", "answer": "2", "problem_type": ["Algebra"]},
    "imo_answerbench": {"Problem ID": "a-1", "Problem": "One plus one?", "Short Answer": "2", "Category": "Algebra"},
}
